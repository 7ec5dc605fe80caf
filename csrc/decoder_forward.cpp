// A decoder's forward: run after run, the input of a run's first step being what was said before it.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include <cmath>

#include "decoder.h"
#include "linear_tensors.h"
#include "schemas.h"

namespace seq2seq_fast {
namespace {

bool has_shape(const Tensor& x, at::IntArrayRef shape) { return !x.defined() || x.sizes() == shape; }

Tensor project(const Tensor& x, const Tensor& weight, const Tensor& bias, bool below_autograd) {
  return below_autograd ? linear(x, weight, bias) : at::linear(x, weight, optional(bias));
}

// (B, n, C + H), or without attention the states (B, n, H) alone; keeps the weights of attention in `alphas`.
Tensor attended(const Decoding& d, const Tensor& states, std::vector<Tensor>& alphas, Run* run) {
  if (!d.attends()) return states;
  const int64_t batch = states.size(0), steps = states.size(1);
  const Tensor projected = project(states, d[weight_query], d[bias_query], run);
  std::vector<Tensor> outputs;
  Tensor query, read;
  if (d.additive()) {
    static const auto plain = find<AdditiveSchema>("seq2seq_fast::additive_attention");
    static const auto train = find<AdditiveSchema>("seq2seq_fast::additive_attention_train");
    query = projected;
    outputs =
        (run ? train : plain)
            .call(query, d[keys].squeeze(1), d[score_weight], d[values].squeeze(1), d.masks(), d.lengths, d.empty_rows);
    read = outputs[0];
  } else {
    static const auto plain = find<AttentionSchema>("seq2seq_fast::attention");
    static const auto train = find<AttentionSchema>("seq2seq_fast::attention_train");
    query = projected.view({batch, steps, d[keys].size(1), -1}).transpose(1, 2);
    outputs = (run ? train : plain)
                  .call(query, d[keys], d[values], d.masks(), d.lengths, std::nullopt, false, 0.0, d.scale(), "heads",
                        d.empty_rows);
    read = d[keys].size(1) == 1 ? outputs[0].squeeze(1) : outputs[0].transpose(1, 2).flatten(2);
  }
  alphas.push_back(outputs[1]);
  if (run) {
    run->query = query;
    run->answers = outputs[0];
    run->lse = outputs[2];
  }
  if (d[weight_joined].defined()) read = project(read, d[weight_joined], d[bias_joined], run);
  return at::cat({read, states}, 2);
}

}  // namespace

double Decoding::scale() const { return score == "scaled_dot" ? 1 / std::sqrt(double(tensors[keys].size(3))) : 1; }

std::vector<Tensor> Decoding::masks() const {
  std::vector<Tensor> masks;
  // -|q - k|^2 / 2 = q . k - |k|^2 / 2 - |q|^2 / 2, and the last is the same for every key
  if (score == "gaussian") masks.push_back(tensors[keys].square().sum(-1).unsqueeze(2) * -0.5);
  if (mask) masks.push_back(additive() ? mask->unsqueeze(1) : mask->unsqueeze(1).unsqueeze(1));
  return masks;
}

bool Decoding::fits() const {
  const Tensor &given = tensors[inputs], &h = tensors[h_0];
  if (given.dim() != (of_tokens() ? 2 : 3) || !given.numel() || h.dim() != 3 || !layers() || h.size(1) != batch())
    return false;
  if (of_tokens() ? given.scalar_type() != at::kLong : given.scalar_type() != h.scalar_type()) return false;
  for (size_t place = 0; place < tensors.size(); ++place) {
    const Tensor& x = tensors[place];
    if (x.defined() && (!x.is_cpu() || x.layout() != at::kStrided || (place && x.scalar_type() != h.scalar_type())))
      return false;
  }
  if (tensors.size() != weights + size_t(layers()) * per_layer() || (per_layer() != 2 && per_layer() != 4))
    return false;
  if ((cell == "lstm") != tensors[c_0].defined() || !has_shape(tensors[c_0], h.sizes())) return false;
  if (tensors[context].defined() && (tensors[context].dim() != 2 || tensors[context].size(0) != batch())) return false;
  if (attends() && (tensors[keys].size(0) != batch() || (additive() && tensors[keys].size(1) != 1))) return false;
  if (mask && (mask->scalar_type() != at::kBool || !has_shape(*mask, {batch(), tensors[keys].size(2)}))) return false;
  const int64_t fed_back = of_tokens() ? tensors[embedding].size(1) : given.size(2);
  const bool feeds = of_tokens() || starts.size() == 1 || tensors[weight_out].size(0) == fed_back;
  const int64_t behind = tensors[context].defined() ? tensors[context].size(1) : 0;
  return feeds && tensors[weights].dim() == 2 && tensors[weights].size(1) == fed_back + behind;
}

Decoded decode(const Decoding& d, std::vector<Run>* runs) {
  static const auto plain = find<LayerSchema>("seq2seq_fast::rnn_layer");
  static const auto train = find<LayerSchema>("seq2seq_fast::rnn_layer_train");
  const bool lstm = d.cell == "lstm";
  Decoded decoded;
  if (d.of_tokens()) decoded.tokens = d.starts.size() == 1 ? d[inputs] : d[inputs].clone();
  const Tensor x = d.of_tokens() ? at::embedding(d[embedding], decoded.tokens, d.padding_idx) : d[inputs];
  std::vector<Tensor> h(size_t(d.layers())), c(h.size()), joined, alphas;
  for (size_t l = 0; l < h.size(); ++l) {
    h[l] = d[h_0].narrow(0, int64_t(l), 1);
    if (lstm) c[l] = d[c_0].narrow(0, int64_t(l), 1);
  }
  Tensor said;  // (B, E) or (B, F)
  for (size_t r = 0; r < d.starts.size(); ++r) {
    const int64_t first = d.starts[r], end = d.end_of(r), steps = end - first;
    Tensor of_run =
        said.defined() ? at::cat({said.unsqueeze(1), x.narrow(1, first + 1, steps - 1)}, 1) : x.narrow(1, first, steps);
    if (d[context].defined()) of_run = at::cat({of_run, d[context].unsqueeze(1).expand({-1, steps, -1})}, 2);
    Tensor input = of_run.transpose(0, 1);
    Run* const run = runs ? &runs->emplace_back() : nullptr;
    for (size_t l = 0; l < h.size(); ++l) {
      const auto outputs =
          (run ? train : plain)
              .call(input, h[l], optional(c[l]), d.weights_of(int64_t(l)), std::nullopt, std::nullopt, d.cell, false);
      if (run) run->layers.push_back({input, h[l], c[l], outputs.back()});
      input = outputs[0];
      h[l] = outputs[1];
      if (lstm) c[l] = outputs[2];
      if (l < d.kept.size()) input = input * d.kept[l].narrow(0, first, steps);
    }
    joined.push_back(attended(d, input.transpose(0, 1), alphas, run));
    if (run) run->joined = joined.back();
    if (end == d.steps()) break;
    said = project(joined.back().select(1, steps - 1), d[weight_out], d[bias_out], runs);
    if (!d.of_tokens()) continue;
    const Tensor own = said.argmax(-1);
    decoded.tokens.select(1, end).copy_(own);
    said = at::embedding(d[embedding], own, d.padding_idx);
  }
  decoded.outputs = project(whole(joined, 1), d[weight_out], d[bias_out], runs);
  if (d.attends()) decoded.alphas = whole(alphas, -2).detach();
  return decoded;
}

}  // namespace seq2seq_fast
