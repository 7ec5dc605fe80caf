// A decoder in training: its layers, attention and output over whole runs of steps, in one node of autograd.
//
// seq2seq_fast/seq2seq/decoder.py says the same in Python, and serves where this does not.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace seq2seq_fast {

using at::Tensor;

// The tensors that a gradient may be asked for, by their place; undefined where a decoder has none. heads * W is C, the
// width of the contexts, or with several heads what weight_joined makes C of.
enum Place : size_t {
  inputs,         // (B, T) tokens or (B, T, F) vectors
  embedding,      // (N, E), of tokens
  context,        // (B, D), behind the input of every step
  h_0,            // (layers, B, H)
  c_0,            // likewise; LSTM only
  weight_out,     // (V, H), with keys (V, C + H)
  bias_out,       // (V)
  keys,           // (B, heads, S, A)
  values,         // (B, heads, S, W)
  weight_query,   // (heads * A, H)
  bias_query,     // (heads * A)
  score_weight,   // (A), of the additive score
  weight_joined,  // (C, heads * W)
  bias_joined,    // (C)
  weights,        // and from here on: weight_ih, weight_hh and with bias bias_ih, bias_hh of every layer
};

struct Decoding {
  std::vector<Tensor> tensors;    // by Place
  std::vector<Tensor> kept;       // (T, B, H) of each gap between two layers, what dropout multiplies with; or none
  std::optional<Tensor> lengths;  // (B), of the keys
  std::optional<Tensor> mask;     // (B, S) bool, of the keys
  std::vector<int64_t> starts;    // the steps that runs start at, 0 first; the input of the others is fed back
  int64_t padding_idx;            // the row of embedding that gets no gradient, or -1
  std::string cell, score, empty_rows;

  const Tensor& operator[](Place place) const { return tensors[place]; }
  bool of_tokens() const { return tensors[embedding].defined(); }
  bool attends() const { return tensors[keys].defined(); }
  bool additive() const { return tensors[score_weight].defined(); }
  int64_t batch() const { return tensors[inputs].size(0); }
  int64_t steps() const { return tensors[inputs].size(1); }
  int64_t layers() const { return tensors[h_0].size(0); }
  int64_t end_of(size_t run) const { return run + 1 < starts.size() ? starts[run + 1] : steps(); }
  size_t per_layer() const { return (tensors.size() - weights) / size_t(layers()); }
  at::TensorList weights_of(int64_t layer) const {
    return at::TensorList(tensors).slice(weights + size_t(layer) * per_layer(), per_layer());
  }
  double scale() const;               // of the products of query and key
  std::vector<Tensor> masks() const;  // of the scores
  bool fits() const;                  // whether shapes, dtypes and devices are as above
};

// What backward reads of a run of n steps.
struct Run {
  struct OfLayer {
    Tensor input, h_0, c_0, reserve;
  };
  std::vector<OfLayer> layers;
  Tensor query;    // (B, heads, n, A), projected; additive (B, n, A)
  Tensor answers;  // (B, heads, n, W), what the attention gave; additive (B, n, W)
  Tensor lse;      // (B, heads, n); additive (B, n)
  Tensor joined;   // (B, n, C + H), what the output is projected from
};

struct Decoded {
  Tensor outputs;  // (B, T, V)
  Tensor alphas;   // (B, heads, T, S), additive (B, T, S); undefined without attention
  Tensor tokens;   // (B, T), the inputs and what was fed back; undefined for vectors
};

// With `runs`, below autograd, and keeps there what backward reads; without, through operators that autograd sees.
Decoded decode(const Decoding& decoding, std::vector<Run>* runs);

// The gradients of decoding.tensors that are needed; the others are undefined.
std::vector<Tensor> decode_backward(const Decoding& decoding, const Tensor& tokens, const std::vector<Run>& runs,
                                    const Tensor& d_outputs, const std::vector<bool>& needs);

// [outputs] or [outputs, alphas], with one node of autograd where a gradient is asked for; none where the Python loop has
// to serve: under a transform of torch.func or a dispatch mode, or where `decoding` does not fit.
std::vector<Tensor> decoder(Decoding decoding);

}  // namespace seq2seq_fast
