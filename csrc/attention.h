// What the attention loops take: sizes and pointers. No torch. Everything is allocated and kept alive by the caller.
//
// B batch, H heads of the query, K heads of key and value, L queries, S keys, E width of query and key, V of value.
#pragma once

#include <cstdint>

#include "recurrence.h"

namespace seq2seq_fast {

// What a query gets that no key takes part for; uniform is 1 / S of each key.
enum class EmptyRows { zeros, nan, uniform };

// (B, heads, rows, width): row i of head h of b starts b * batch + h * head + i * row elements in, and is dense.
struct Heads {
  void* data;
  int64_t batch, head, row;
};

// (B, H, L, S) through strides in elements, 0 where broadcast. A bool says which keys take part; numbers are added to
// the scores, and -inf takes no part.
struct Mask {
  const void* data;
  int64_t stride[4];
  bool boolean;
  void* d_mask;  // backward only: (d_size), its gradient, through d_stride; null where not asked for
  int64_t d_stride[4];
  int64_t d_size;
};

// Weights are kept where a 24-bit fraction of Philox is not below `threshold`; see reference_attention.dropout_keep.
struct Dropout {
  uint32_t threshold;  // 0: no dropout
  uint64_t seed;
  double scale;  // of the weights that are kept
};

struct Attention {
  Dtype dtype;  // float32 or float64
  int64_t batch, heads, kv_heads, queries, keys, width, value_width;
  Heads query, key, value, output;
  const void* score_weight;  // (width): the score is score_weight . tanh(q + k); null: scale q . k
  Mask mask[2];
  int masks;
  const int64_t* lengths;  // (B), or null for all S
  bool causal;
  double scale;
  Dropout dropout;
  EmptyRows empty_rows;
  void* weights;  // (B, H, L, S), averaged (B, L, S); null where not asked for
  bool average;
  void* lse;  // (B, H, L); null for inference
  int threads;

  // backward only, beside lse; null where there is none, or where it is not asked for
  Heads d_output, d_query, d_key, d_value;
  const void* d_weights;  // laid out as weights
  void* d_score_weight;
};

}  // namespace seq2seq_fast
