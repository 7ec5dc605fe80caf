// A decoder's backward: the gradients of what decode() kept, the last run first.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "decoder.h"
#include "linear_tensors.h"
#include "schemas.h"

namespace seq2seq_fast {
namespace {

struct Backward {
  const Decoding& d;
  const std::vector<bool>& needs;
  std::vector<Tensor> gradients;

  void add(size_t place, const Tensor& gradient) { add_to(gradients[place], gradient); }

  // Of weight (out, in) and bias, from the gradients (rows, out) of what was made of x (rows, in).
  void add_linear(Place weight, Place bias, const Tensor& d_y, const Tensor& x) {
    linear_weight_gradient(d_y, x, d[weight], needs[weight] ? &gradients[weight] : nullptr,
                           needs[bias] ? &gradients[bias] : nullptr);
  }

  // (B, n, H): of the states, from those of what is projected to the output, to which it adds.
  Tensor attended(const Run& run, const Tensor& d_joined);
  // (n, B, I), undefined where not needed: of the input, from those of the states. Those of the state that the run starts
  // with take the place of those of the state it leaves.
  Tensor layers(const Run& run, int64_t first, Tensor d_states, std::vector<Tensor>& d_h, std::vector<Tensor>& d_c,
                bool input_needed);
};

Tensor Backward::attended(const Run& run, const Tensor& d_joined) {
  if (!d.attends()) return d_joined;
  const int64_t batch = d_joined.size(0), steps = d_joined.size(1), H = d[h_0].size(2), C = d_joined.size(2) - H;
  const Tensor states = rows(run.joined.narrow(2, C, H));
  Tensor d_read = d_joined.narrow(2, 0, C);
  const int64_t heads = d[keys].size(1);
  if (d[weight_joined].defined()) {
    const Tensor d_rows = rows(d_read);
    add_linear(weight_joined, bias_joined, d_rows, rows(run.answers.transpose(1, 2).flatten(2)));
    d_read = linear_input_gradient(d_rows, d[weight_joined]).view({batch, steps, -1});
  }
  c10::List<bool> wanted;
  const bool gaussian = d.score == "gaussian";
  wanted.push_back(true);  // the query, which leads to the states
  wanted.push_back(needs[keys]);
  if (d.additive()) wanted.push_back(needs[score_weight]);
  wanted.push_back(needs[values]);
  const auto masks = d.masks();
  for (size_t k = 0; k < masks.size(); ++k) wanted.push_back(gaussian && k == 0 && needs[keys]);
  c10::List<std::optional<Tensor>> given;
  std::vector<Tensor> found;
  if (d.additive()) {
    static const auto op = find<AdditiveBackwardSchema>("seq2seq_fast::additive_attention_backward");
    given.push_back(d_read);
    given.push_back(std::nullopt);
    found = op.call(given, run.answers, run.lse, wanted, run.query, d[keys].squeeze(1), d[score_weight],
                    d[values].squeeze(1), masks, d.lengths, d.empty_rows);
    if (needs[score_weight]) add(score_weight, found[2]);
    if (needs[keys]) add(keys, found[1].unsqueeze(1));
    if (needs[values]) add(values, found[3].unsqueeze(1));
  } else {
    static const auto op = find<AttentionBackwardSchema>("seq2seq_fast::attention_backward");
    given.push_back(d_read.view({batch, steps, heads, -1}).transpose(1, 2));
    given.push_back(std::nullopt);
    found = op.call(given, run.answers, run.lse, wanted, run.query, d[keys], d[values], masks, d.lengths, std::nullopt,
                    false, 0.0, d.scale(), "heads", d.empty_rows);
    if (needs[keys]) add(keys, found[1]);
    if (needs[values]) add(values, found[2]);
    // of what the mask adds, -|k|^2 / 2
    if (gaussian && needs[keys]) add(keys, (d[keys] * found[3].transpose(2, 3)).neg_());
  }
  const Tensor d_projected = d.additive() ? rows(found[0]) : rows(found[0].transpose(1, 2).flatten(2));
  add_linear(weight_query, bias_query, d_projected, states);
  linear_input_gradient(d_projected, d[weight_query], rows(d_joined).narrow(1, C, H));
  return d_joined.narrow(2, C, H);
}

Tensor Backward::layers(const Run& run, int64_t first, Tensor d_states, std::vector<Tensor>& d_h,
                        std::vector<Tensor>& d_c, bool input_needed) {
  static const auto op = find<BackwardSchema>("seq2seq_fast::rnn_layer_backward");
  const bool lstm = d.cell == "lstm";
  Tensor d_output = d_states.transpose(0, 1);
  for (size_t l = run.layers.size(); l-- > 0;) {
    const Run::OfLayer& of = run.layers[l];
    if (l < d.kept.size()) d_output = d_output * d.kept[l].narrow(0, first, d_output.size(0));
    const size_t place = weights + l * d.per_layer();
    bool weights_needed = false;
    for (size_t k = 0; k < d.per_layer(); ++k) weights_needed |= needs[place + k];
    // before the first run the states are those given
    const bool before = first > 0;
    c10::List<std::optional<Tensor>> given;
    given.push_back(d_output);
    given.push_back(optional(d_h[l]));
    if (lstm) given.push_back(optional(d_c[l]));
    const auto found =
        op.call(given, of.reserve,
                {l > 0 || input_needed, before || needs[h_0], lstm && (before || needs[c_0]), weights_needed}, of.input,
                of.h_0, optional(of.c_0), d.weights_of(int64_t(l)), std::nullopt, std::nullopt, d.cell, false);
    d_output = found[0];
    d_h[l] = found[1];
    if (lstm) d_c[l] = found[2];
    if (!weights_needed) continue;
    for (size_t k = 0; k < d.per_layer(); ++k) add(place + k, found[3 + k]);
  }
  return input_needed ? d_output : Tensor();
}

}  // namespace

std::vector<Tensor> decode_backward(const Decoding& d, const Tensor& tokens, const std::vector<Run>& runs,
                                    const Tensor& d_outputs, const std::vector<bool>& needs) {
  Backward backward{d, needs, std::vector<Tensor>(d.tensors.size())};
  const int64_t batch = d.batch(), V = d[weight_out].size(0),
                E = d.of_tokens() ? d[embedding].size(1) : d[inputs].size(2);
  const bool vectors = !d.of_tokens();
  // what was fed back adds its gradient to that of the output it was
  Tensor d_said = vectors && runs.size() > 1 ? d_outputs.clone() : d_outputs;
  std::vector<Tensor> d_h(size_t(d.layers())), d_c(d_h.size()), d_x(runs.size()), joined;
  for (size_t r = runs.size(); r-- > 0;) {
    const int64_t first = d.starts[r], steps = d.end_of(r) - first;
    const Tensor d_joined =
        linear_input_gradient(rows(d_said.narrow(1, first, steps)), d[weight_out]).view({batch, steps, -1});
    const bool fed_back = vectors && first > 0;
    const bool input_needed = needs[context] || needs[d.of_tokens() ? embedding : inputs] || fed_back;
    const Tensor d_input =
        backward.layers(runs[r], first, backward.attended(runs[r], d_joined), d_h, d_c, input_needed);
    if (!input_needed) continue;
    if (needs[context]) backward.add(context, d_input.narrow(2, E, d_input.size(2) - E).sum(0));
    Tensor d_of_run = d_input.narrow(2, 0, E);
    if (fed_back) {
      d_said.select(1, first - 1).add_(d_of_run[0]);
      if (needs[inputs])
        d_of_run = at::cat({at::zeros_like(d_of_run[0]).unsqueeze(0), d_of_run.narrow(0, 1, steps - 1)});
    }
    d_x[r] = d_of_run;
  }
  for (const Run& run : runs) joined.push_back(run.joined);
  backward.add_linear(weight_out, bias_out, rows(d_said), rows(whole(joined, 1)));
  if (needs[h_0]) backward.gradients[h_0] = whole(d_h, 0);
  if (needs[c_0]) backward.gradients[c_0] = whole(d_c, 0);
  if (vectors && needs[inputs]) backward.gradients[inputs] = whole(d_x, 0).transpose(0, 1);
  if (needs[embedding])
    backward.gradients[embedding] = at::embedding_dense_backward(whole(d_x, 0).contiguous(), tokens.t().contiguous(),
                                                                 d[embedding].size(0), d.padding_idx, false);
  return backward.gradients;
}

}  // namespace seq2seq_fast
