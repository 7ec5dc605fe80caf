// How a decoder meets autograd: one node, that keeps the runs of its forward.
#include <ATen/Functions.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "decoder.h"
#include "derivatives.h"
#include "schemas.h"

namespace seq2seq_fast {
namespace {

using torch::autograd::AutogradContext;

// Whether the search operator can tell ahead which tokens will be fed back: without a gradient, in one call.
bool searches(const Decoding& d) {
  const auto dtype = d[h_0].scalar_type();
  return d.starts.size() > 1 && d.of_tokens() && d.kept.empty() && (dtype == at::kFloat || dtype == at::kDouble) &&
         (!d.attends() || d[keys].size(1) == 1);
}

// (B, T): the inputs, with what the decoder says itself where a run starts.
Tensor with_own_tokens(const Decoding& d) {
  static const auto op = find<SearchSchema>("seq2seq_fast::search");
  const int64_t batch = d.batch(), length = d.steps(), steps = d.starts.back();
  const Tensor tokens = d[inputs].clone(at::MemoryFormat::Contiguous);
  const Tensor forced = at::empty({steps, batch}, tokens.options());
  int64_t *const token = tokens.data_ptr<int64_t>(), *const force = forced.data_ptr<int64_t>();
  for (int64_t t = 0; t < steps; ++t)
    for (int64_t b = 0; b < batch; ++b) force[t * batch + b] = token[b * length + t + 1];
  for (size_t run = 1; run < d.starts.size(); ++run) std::fill_n(force + (d.starts[run] - 1) * batch, batch, -1);
  const auto of_one_head = [&](Place place) { return d.attends() ? optional(d[place].squeeze(1)) : std::nullopt; };
  const Tensor said = op.call(tokens.select(1, 0), d[embedding], optional(d[context]), d[h_0], optional(d[c_0]),
                              at::TensorList(d.tensors).slice(weights), d.cell, d[weight_out], optional(d[bias_out]),
                              of_one_head(keys), of_one_head(values), d.lengths, d.mask, optional(d[weight_query]),
                              optional(d[bias_query]), optional(d[score_weight]), d.score, d.empty_rows, steps,
                              std::nullopt, 0, 1, 0.0, forced, std::nullopt, 1.0, 0, 1.0, false)[0];
  for (int64_t b = 0; b < batch; ++b)
    std::copy_n(said.const_data_ptr<int64_t>() + b * steps, steps, token + b * length + 1);
  return tokens;
}

void check_tokens(const Decoding& d) {
  const Tensor tokens = d[inputs].contiguous();
  const int64_t *const first = tokens.const_data_ptr<int64_t>(), *const end = first + tokens.numel();
  const int64_t count = d[embedding].size(0);
  const auto* const wrong = std::find_if(first, end, [&](int64_t token) { return token < 0 || token >= count; });
  TORCH_CHECK_INDEX(wrong == end, "inputs: expected tokens from 0 to ", count - 1, ", got ", *wrong);
}

struct DecoderFunction : torch::autograd::Function<DecoderFunction> {
  static constexpr bool is_traceable = true;

  // `decoding` holds the tensors too; autograd sees those there are.
  static variable_list forward(AutogradContext* ctx, at::TensorList, const Decoding& decoding) {
    at::AutoDispatchBelowADInplaceOrView below;
    std::vector<Run> runs;
    const Decoded decoded = decode(decoding, &runs);
    variable_list saved = decoding.tensors;
    saved.insert(saved.end(), {decoded.tokens, decoding.lengths.value_or(Tensor()), decoding.mask.value_or(Tensor())});
    saved.insert(saved.end(), decoding.kept.begin(), decoding.kept.end());
    for (const Run& run : runs) {
      for (const Run::OfLayer& of : run.layers) saved.insert(saved.end(), {of.input, of.h_0, of.c_0, of.reserve});
      saved.insert(saved.end(), {run.query, run.answers, run.lse, run.joined});
    }
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["tensors"] = int64_t(decoding.tensors.size());
    ctx->saved_data["kept"] = int64_t(decoding.kept.size());
    ctx->saved_data["starts"] = decoding.starts;
    ctx->saved_data["padding_idx"] = decoding.padding_idx;
    ctx->saved_data["cell"] = decoding.cell;
    ctx->saved_data["score"] = decoding.score;
    ctx->saved_data["empty_rows"] = decoding.empty_rows;
    ctx->set_materialize_grads(false);
    if (!decoded.alphas.defined()) return {decoded.outputs};
    return {decoded.outputs, decoded.alphas};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& d_outputs) {
    variable_list saved = ctx->get_saved_variables();
    auto next = saved.begin();
    const auto take = [&] { return std::move(*next++); };
    Decoding d;
    for (int64_t count = ctx->saved_data["tensors"].toInt(); count; --count) d.tensors.push_back(take());
    const Tensor tokens = take();
    d.lengths = optional(take());
    d.mask = optional(take());
    for (int64_t count = ctx->saved_data["kept"].toInt(); count; --count) d.kept.push_back(take());
    d.starts = ctx->saved_data["starts"].toIntVector();
    d.padding_idx = ctx->saved_data["padding_idx"].toInt();
    d.cell = ctx->saved_data["cell"].toStringRef();
    d.score = ctx->saved_data["score"].toStringRef();
    d.empty_rows = ctx->saved_data["empty_rows"].toStringRef();

    std::vector<bool> needs;
    size_t edge = 0;
    for (const Tensor& x : d.tensors) needs.push_back(x.defined() && ctx->needs_input_grad(edge++));
    variable_list gradients(d.tensors.size());
    const bool create_graph = at::GradMode::is_enabled();
    if (!d_outputs[0].defined()) {
      // nothing was made of the outputs
    } else if (create_graph || any_batched(d_outputs)) {
      const auto reference = [&](const variable_list& tensors) -> variable_list {
        Decoding other = d;
        other.tensors = tensors;
        if (d.of_tokens()) {
          other.tensors[inputs] = tokens;
          other.starts = {0};
        }
        return {decode(other, nullptr).outputs};
      };
      gradients = reference_gradients(reference, {d_outputs[0]}, d.tensors, needs, create_graph);
    } else {
      std::vector<Run> runs(d.starts.size());
      for (Run& run : runs) {
        for (int64_t l = 0; l < d.layers(); ++l) run.layers.push_back({take(), take(), take(), take()});
        run.query = take();
        run.answers = take();
        run.lse = take();
        run.joined = take();
      }
      at::AutoDispatchBelowADInplaceOrView below;
      gradients = decode_backward(d, tokens, runs, d_outputs[0], needs);
    }
    variable_list results;
    for (size_t place = 0; place < gradients.size(); ++place)
      if (d.tensors[place].defined()) results.push_back(needs[place] ? gradients[place] : Tensor());
    results.emplace_back();  // decoding
    return results;
  }
};

}  // namespace

std::vector<Tensor> decoder(Decoding d) {
  if (!d.fits() || transforming() || c10::impl::dispatch_mode_enabled()) return {};
  const auto differentiated = [](const Tensor& x) { return x.defined() && x.requires_grad(); };
  const bool graph = at::GradMode::is_enabled() && std::any_of(d.tensors.begin(), d.tensors.end(), differentiated);
  if (d.of_tokens()) check_tokens(d);
  if (searches(d)) {
    at::NoGradGuard no_grad;
    d.tensors[inputs] = with_own_tokens(d);
    d.starts = {0};
  }
  if (graph) {
    variable_list present;
    for (const Tensor& x : d.tensors)
      if (x.defined()) present.push_back(x);
    variable_list results = DecoderFunction::apply(at::TensorList(present), d);
    if (d.attends()) results[1] = results[1].detach();
    return results;
  }
  const Decoded decoded = decode(d, nullptr);
  if (!decoded.alphas.defined()) return {decoded.outputs};
  return {decoded.outputs, decoded.alphas};
}

}  // namespace seq2seq_fast
