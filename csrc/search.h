// What decoding takes: sizes and pointers. No torch. Everything is allocated and kept alive by the caller, and dense.
//
// B rows, K beams, T steps, H hidden, G gates, I width of what is fed back, C of the context, V of the output, S keys, A
// width of keys and queries, W of values. seq2seq_fast/reference_search.py says what is computed.
#pragma once

#include <cstdint>

#include "attention.h"
#include "recurrence.h"

namespace seq2seq_fast {

// Scores that are products of query and key, scaled and with something added; or additive; or of their distance.
enum class Score { product, gaussian, additive, boxcar, epanechnikov };

struct StackedLayer {
  const void* weight_ih;  // (G*H, I + C), above the first layer (G*H, H)
  const void* weight_hh;  // (G*H, H)
  const void* bias_ih;  // (G*H) or null
  const void* bias_hh;  // (G*H) or null
};

// What the top layer's state asks, where keys is not null.
struct SearchMemory {
  int64_t size, width, value_width;  // S, A, W
  const void* keys;  // (B, S, A)
  const void* values;  // (B, S, W)
  const int64_t* lengths;  // (B), or null for all S
  const bool* mask;  // (B, S), or null
  const void* weight_query;  // (A, H), or null: the state itself
  const void* bias_query;  // (A) or null
  const void* score_weight;  // (A), additive alone
  Score score;
  double scale;
  EmptyRows empty_rows;
  void* alphas;  // (B, K, T, S), or null where not asked for
};

struct Search {
  Cell cell;
  Dtype dtype;  // float32 or float64, of everything but integers
  int64_t rows, beams, steps, layers, hidden_size, input_size, context_size, output_size;  // B K T - H I C V
  const StackedLayer* layer;
  const void* h_0;  // (layers, B, H)
  const void* c_0;  // likewise; LSTM only
  const void* context;  // (B, C) or null
  const void* weight_out;  // (V, H), with keys (V, W + H)
  const void* bias_out;  // (V) or null
  SearchMemory memory;
  int threads;

  // vectors are fed back: null for tokens
  const void* first_vector;  // (B, V)
  void* outputs;  // (B, T, V)

  // tokens are fed back
  const int64_t* first_token;  // (B)
  const void* embedding;  // (vocabulary, I)
  int64_t vocabulary;  // at least V
  int64_t eos;  // -1: no token ends a row
  int64_t pad;
  double length_penalty;
  const int64_t* forced;  // (T, B), or null; the token of a step where not negative, without a score; one beam
  const double* uniforms;  // (T, B), or null: the best tokens
  double temperature, top_p;
  int64_t top_k;  // 0: all
  int64_t* tokens;  // (B, K, T)
  int64_t* lengths;  // (B, K)
  void* scores;  // (B, K)
};

}  // namespace seq2seq_fast
