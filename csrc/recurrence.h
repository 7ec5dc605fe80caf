// What the time loop takes: sizes and pointers. No torch. Everything is allocated and kept alive by the caller.
#pragma once

#include <cstdint>

namespace seq2seq_fast {

enum class Cell { gru, lstm, rnn_tanh, rnn_relu };
constexpr int64_t gates_of(Cell cell) { return cell == Cell::gru ? 3 : cell == Cell::lstm ? 4 : 1; }

enum class Dtype { float32, float64, bfloat16 };

// Slots of the reserve are padded to this many elements, which the vectors of every processor divide; long ones to an odd
// number of cache lines, or the same place in all rows would want the same few sets of a cache.
constexpr int64_t reserve_align = 16;
constexpr int64_t padded(int64_t hidden) {
  const int64_t blocks = (hidden + reserve_align - 1) / reserve_align;
  return (blocks < 32 ? blocks : blocks | 1) * reserve_align;
}

// The time and batch of a layer. The batch is ordered longest row first, so that the rows that run at a step are the
// first ones: a PackedSequence is so already, padded input with lengths is through `Rows::by_row`.
struct Sequence {
  int64_t steps, batch;
  int64_t rows;           // sum of active
  const int64_t* active;  // (steps), how many rows run at step t; never increases
  const int64_t* first;   // (steps), the sum of active before step t
};

// The rows of a tensor in any layout: row i of step t starts `by_step[t] + by_row[i]` elements into it.
struct Rows {
  void* data;
  const int64_t* by_step;  // (steps)
  const int64_t* by_row;   // (batch)
};

// One direction of a layer. Weights are contiguous, in the layer's dtype; gates in torch.nn's order.
struct Direction {
  const void* weight_ih;  // (G*H, I)
  const void* weight_hh;  // (G*H, S)
  const void* weight_hr;  // (S, H), the projection of h, or null; LSTM only
  const void* bias_ih;    // (G*H) or null
  const void* bias_hh;    // (G*H) or null
  const void* h_0;        // (batch, S) with rows in the order `hx_row`, or null for zeros
  const void* c_0;        // (batch, H), likewise; LSTM only
  void* h_n;              // (batch, S)
  void* c_n;              // (batch, H); LSTM only
  void* reserve;          // (rows, slots, padded(H)) of float, for float64 of double; null for inference
  bool reverse;

  // backward only; null where not asked for
  const void* d_h_n;
  const void* d_c_n;
  void* d_h_0;
  void* d_c_0;
  void* d_weight_ih;
  void* d_weight_hh;
  void* d_weight_hr;
  void* d_bias_ih;
  void* d_bias_hh;
};

struct Layer {
  Cell cell;
  Dtype dtype;  // of every tensor but the reserve; sums are taken in float, for float64 in double
  int64_t input_size, hidden_size;
  int64_t state_size;  // S, of h: proj_size where there is a projection, else H
  Sequence sequence;
  Rows input;             // rows of I elements
  Rows output;            // rows of directions * S; backward: its gradient, data null for zero
  Rows d_input;           // backward only: rows of I elements; data null where not asked for
  const int64_t* hx_row;  // (batch), which row of a state is row i's
  int directions;
  Direction direction[2];
  int threads;
};

struct Attention;  // attention.h
struct Search;     // search.h
struct Linear;     // linear.h

// One engine for each instruction set. Each function runs the whole of it and returns when it is done.
struct Engine {
  const char* name;
  bool bfloat16;
  void (*forward)(const Layer&);
  void (*backward)(const Layer&);
  void (*attention_forward)(const Attention&);
  void (*attention_backward)(const Attention&);
  void (*search)(const Search&);
  void (*linear_forward)(const Linear&);
  void (*linear_backward)(const Linear&);
  double (*peak)(int threads);  // GFLOP/s of float32 multiply-adds from registers
};

// The best engine for this processor; SEQ2SEQ_FAST_ISA=plain|avx2|avx512|avx512_bf16 takes a lesser one.
const Engine& engine();

}  // namespace seq2seq_fast
