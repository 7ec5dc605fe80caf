// Decoding on the CPU: checks, allocation, and the pointers that the loop takes.
//
// seq2seq_fast/search_ops.py has the schemas, reference_search.py says what each operator returns.
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <deque>

#include "names.h"
#include "schemas.h"
#include "search.h"
#include "tensors.h"

namespace seq2seq_fast {
namespace {

// What both operators read of a decoder, checked. Keeps what the pointers point to.
struct Decoder {
  Search search = {};
  at::ScalarType dtype;
  std::vector<StackedLayer> layers;

  Decoder(OptionalTensor context, const Tensor& h_0, OptionalTensor c_0, at::TensorList weights, std::string_view cell,
          const Tensor& weight_out, OptionalTensor bias_out, int64_t input_size)
      : dtype(h_0.scalar_type()) {
    TORCH_CHECK_VALUE(dtype == at::kFloat || dtype == at::kDouble, "h_0: expected float32 or float64, got ", dtype);
    TORCH_CHECK(h_0.dim() == 3 && h_0.numel(), "h_0: expected (L, B, H), none of them 0, got ", h_0.sizes());
    search.cell = cell_named(cell);
    search.dtype = dtype == at::kDouble ? Dtype::float64 : Dtype::float32;
    search.layers = h_0.size(0);
    search.rows = h_0.size(1);
    search.hidden_size = h_0.size(2);
    search.input_size = input_size;
    search.context_size = context.has_value() ? context->size(-1) : 0;
    search.output_size = weight_out.size(0);
    search.beams = 1;
    search.threads = threads();
    const int64_t H = search.hidden_size, gates = gates_of(search.cell) * H;
    search.h_0 = pointer("h_0", h_0, h_0.sizes());
    TORCH_CHECK(c_0.has_value() == (search.cell == Cell::lstm), "c_0: expected for the LSTM alone, got cell ", cell);
    search.c_0 = pointer("c_0", c_0, h_0.sizes());
    search.context = pointer("context", context, {search.rows, search.context_size});
    const int64_t per_layer = int64_t(weights.size()) / search.layers;
    TORCH_CHECK((per_layer == 2 || per_layer == 4) && int64_t(weights.size()) == per_layer * search.layers,
                "weights: expected 2 or 4 for each of the ", search.layers, " layers of h_0, got ", weights.size());
    for (int64_t l = 0; l < search.layers; ++l) {
      const Tensor* of = &weights[l * per_layer];
      const int64_t width = l ? H : input_size + search.context_size;
      const bool bias = per_layer == 4;
      layers.push_back({pointer("weight_ih", of[0], {gates, width}), pointer("weight_hh", of[1], {gates, H}),
                        bias ? pointer("bias_ih", of[2], {gates}) : nullptr,
                        bias ? pointer("bias_hh", of[3], {gates}) : nullptr});
    }
    search.layer = layers.data();
    search.bias_out = pointer("bias_out", bias_out, {search.output_size});
  }
  Decoder(const Decoder&) = delete;

  void attend(OptionalTensor keys, OptionalTensor values, OptionalTensor lengths, OptionalTensor mask,
              OptionalTensor weight_query, OptionalTensor bias_query, OptionalTensor score_weight,
              std::string_view score, std::string_view empty_rows) {
    if (!keys.has_value()) return;
    TORCH_CHECK(values.has_value(), "values: expected with keys, got None");
    TORCH_CHECK(keys->dim() == 3 && keys->numel() && values->dim() == 3 && values->numel(),
                "keys, values: expected (B, S, width), none of them 0, got ", keys->sizes(), " and ", values->sizes());
    SearchMemory& memory = search.memory;
    const int64_t B = search.rows, S = memory.size = keys->size(1), H = search.hidden_size;
    memory.width = keys->size(2);
    memory.value_width = values->size(2);
    memory.keys = pointer("keys", keys, {B, S, weight_query.has_value() ? memory.width : H});
    memory.values = pointer("values", values, {B, S, memory.value_width});
    memory.weight_query = pointer("weight_query", weight_query, {memory.width, H});
    memory.bias_query = pointer("bias_query", bias_query, {memory.width});
    memory.score_weight = pointer("score_weight", score_weight, {memory.width});
    read_score(score);
    memory.empty_rows = empty_rows_named(empty_rows);
    if (mask.has_value()) {
      TORCH_CHECK(mask->scalar_type() == at::kBool && mask->sizes() == at::IntArrayRef({B, S}), "mask: expected bool [",
                  B, ", ", S, "], got ", mask->scalar_type(), " ", mask->sizes());
      memory.mask = keep(mask->contiguous()).const_data_ptr<bool>();
    }
    if (lengths.has_value()) {
      memory.lengths = integers("lengths", *lengths, {B}, S + 1).const_data_ptr<int64_t>();
    }
  }

  void read_weight_out(const Tensor& weight_out) {
    const int64_t read = search.hidden_size + (search.memory.keys ? search.memory.value_width : 0);
    search.weight_out = pointer("weight_out", weight_out, {std::max<int64_t>(search.output_size, 1), read});
  }

  // int64 from 0 to below `end`.
  const Tensor& integers(const char* name, const Tensor& x, at::IntArrayRef shape, int64_t end) {
    TORCH_CHECK(x.is_cpu() && x.scalar_type() == at::kLong && x.sizes() == shape, name, ": expected int64 ", shape,
                " on the CPU, got ", x.scalar_type(), " ", x.sizes(), " on ", x.device());
    const Tensor& kept = keep(x.contiguous());
    const int64_t* numbers = kept.const_data_ptr<int64_t>();
    for (int64_t k = 0; k < kept.numel(); ++k)
      TORCH_CHECK_VALUE(numbers[k] >= 0 && numbers[k] < end, name, ": expected 0 to ", end - 1, ", got ", numbers[k]);
    return kept;
  }

  const void* pointer(const char* name, OptionalTensor x, at::IntArrayRef shape) {
    if (!x.has_value()) return nullptr;
    TORCH_CHECK(x->is_cpu() && x->scalar_type() == dtype && x->sizes() == shape, name, ": expected ", dtype, " ", shape,
                " on the CPU, got ", x->scalar_type(), " ", x->sizes(), " on ", x->device());
    return keep(x->contiguous()).const_data_ptr();
  }

  Tensor results(at::IntArrayRef shape) const { return fresh(shape, at::TensorOptions().dtype(dtype)); }

 private:
  const Tensor& keep(Tensor x) { return kept_.emplace_back(std::move(x)); }

  void read_score(std::string_view score) {
    SearchMemory& memory = search.memory;
    memory.score = score == "additive"       ? Score::additive
                   : score == "gaussian"     ? Score::gaussian
                   : score == "boxcar"       ? Score::boxcar
                   : score == "epanechnikov" ? Score::epanechnikov
                                             : Score::product;
    const bool distance = memory.score == Score::boxcar || memory.score == Score::epanechnikov;
    memory.scale = distance ? 0 : score == "scaled_dot" ? 1 / std::sqrt(double(memory.width)) : 1;
    TORCH_CHECK_VALUE(memory.score != Score::product || score == "scaled_dot" || score == "dot" || score == "general",
                      "score: expected scaled_dot, dot, general, additive, gaussian, boxcar or epanechnikov, got ",
                      score);
    TORCH_CHECK_VALUE((memory.score == Score::additive) == bool(memory.score_weight),
                      "score_weight: expected with the additive score alone, got score ", score);
  }

  std::deque<Tensor> kept_;  // its elements stay where they are
};

std::vector<Tensor> search(const Tensor& start, const Tensor& embedding, OptionalTensor context, const Tensor& h_0,
                           OptionalTensor c_0, at::TensorList weights, std::string_view cell, const Tensor& weight_out,
                           OptionalTensor bias_out, OptionalTensor keys, OptionalTensor values, OptionalTensor lengths,
                           OptionalTensor mask, OptionalTensor weight_query, OptionalTensor bias_query,
                           OptionalTensor score_weight, std::string_view score, std::string_view empty_rows,
                           int64_t max_steps, std::optional<int64_t> eos, int64_t pad, int64_t beams,
                           double length_penalty, OptionalTensor forced, OptionalTensor uniforms, double temperature,
                           int64_t top_k, double top_p, bool alphas) {
  TORCH_CHECK(embedding.dim() == 2, "embedding: expected (V, E), got ", embedding.sizes());
  TORCH_CHECK(weight_out.dim() == 2, "weight_out: expected 2 dimensions, got ", weight_out.dim());
  Decoder decoder(context, h_0, c_0, weights, cell, weight_out, bias_out, embedding.size(1));
  decoder.attend(keys, values, lengths, mask, weight_query, bias_query, score_weight, score, empty_rows);
  decoder.read_weight_out(weight_out);
  Search& search = decoder.search;
  const int64_t B = search.rows, V = search.output_size;
  search.vocabulary = embedding.size(0);
  TORCH_CHECK(search.vocabulary >= V, "embedding: expected at least the ", V, " rows of weight_out, got ",
              search.vocabulary);
  TORCH_CHECK_VALUE(max_steps > 0, "max_steps: expected 1 or more, got ", max_steps);
  TORCH_CHECK_VALUE(beams > 0 && beams <= V, "beams: expected 1 to ", V, ", the vocabulary, got ", beams);
  TORCH_CHECK_VALUE(!eos || (*eos >= 0 && *eos < V), "eos: expected 0 to ", V - 1, ", got ", *eos);
  TORCH_CHECK_VALUE(!alphas || keys.has_value(), "alphas: expected keys to attend to, got None");
  search.embedding = decoder.pointer("embedding", embedding, embedding.sizes());
  search.first_token = decoder.integers("start", start, {B}, search.vocabulary).const_data_ptr<int64_t>();
  search.steps = max_steps;
  search.beams = beams;
  search.eos = eos.value_or(-1);
  search.pad = pad;
  search.length_penalty = length_penalty;
  Tensor given;
  if (forced.has_value()) {
    TORCH_CHECK(forced->is_cpu() && forced->scalar_type() == at::kLong &&
                    forced->sizes() == at::IntArrayRef({max_steps, B}) && beams == 1 && !alphas,
                "forced: expected int64 [", max_steps, ", ", B, "] on the CPU, one beam and no alphas, got ",
                forced->scalar_type(), " ", forced->sizes(), ", ", beams, " and ", alphas);
    given = forced->contiguous();
    search.forced = given.const_data_ptr<int64_t>();
    const int64_t highest = *std::max_element(search.forced, search.forced + given.numel());
    TORCH_CHECK_VALUE(highest < search.vocabulary, "forced: expected tokens below ", search.vocabulary, ", got ",
                      highest);
  }
  Tensor drawn;
  if (uniforms.has_value()) {
    TORCH_CHECK(uniforms->is_cpu() && uniforms->scalar_type() == at::kDouble &&
                    uniforms->sizes() == at::IntArrayRef({max_steps, B}) && beams == 1,
                "uniforms: expected float64 [", max_steps, ", ", B, "] on the CPU and one beam, got ",
                uniforms->scalar_type(), " ", uniforms->sizes(), " and ", beams);
    TORCH_CHECK_VALUE(temperature > 0, "temperature: expected more than 0, got ", temperature);
    TORCH_CHECK_VALUE(top_k >= 0, "top_k: expected 0 or more, got ", top_k);
    drawn = uniforms->contiguous();
    search.uniforms = drawn.const_data_ptr<double>();
    search.temperature = temperature;
    search.top_k = top_k;
    search.top_p = top_p;
  }
  std::vector<Tensor> results{empty({B, beams, max_steps}, start.options()), empty({B, beams}, start.options()),
                              decoder.results({B, beams})};
  search.tokens = results[0].data_ptr<int64_t>();
  search.lengths = results[1].data_ptr<int64_t>();
  search.scores = results[2].data_ptr();
  if (alphas) {
    results.push_back(decoder.results({B, beams, max_steps, search.memory.size}));
    search.memory.alphas = results.back().data_ptr();
  }
  engine().search(search);
  return results;
}

std::vector<Tensor> feedback(const Tensor& start, OptionalTensor context, const Tensor& h_0, OptionalTensor c_0,
                             at::TensorList weights, std::string_view cell, const Tensor& weight_out,
                             OptionalTensor bias_out, OptionalTensor keys, OptionalTensor values,
                             OptionalTensor lengths, OptionalTensor mask, OptionalTensor weight_query,
                             OptionalTensor bias_query, OptionalTensor score_weight, std::string_view score,
                             std::string_view empty_rows, int64_t steps, bool alphas) {
  TORCH_CHECK(weight_out.dim() == 2, "weight_out: expected 2 dimensions, got ", weight_out.dim());
  Decoder decoder(context, h_0, c_0, weights, cell, weight_out, bias_out, weight_out.size(0));
  decoder.attend(keys, values, lengths, mask, weight_query, bias_query, score_weight, score, empty_rows);
  decoder.read_weight_out(weight_out);
  Search& search = decoder.search;
  TORCH_CHECK_VALUE(steps > 0, "steps: expected 1 or more, got ", steps);
  TORCH_CHECK_VALUE(!alphas || keys.has_value(), "alphas: expected keys to attend to, got None");
  search.steps = steps;
  search.first_vector = decoder.pointer("start", start, {search.rows, search.output_size});
  std::vector<Tensor> results{decoder.results({search.rows, steps, search.output_size})};
  search.outputs = results[0].data_ptr();
  if (alphas) {
    results.push_back(decoder.results({search.rows, steps, search.memory.size}));
    search.memory.alphas = results.back().data_ptr();
  }
  engine().search(search);
  return results;
}

}  // namespace

TORCH_LIBRARY_IMPL(seq2seq_fast, CPU, m) {
  m.impl("search", search);
  m.impl("feedback", feedback);
}

}  // namespace seq2seq_fast
