// What the product of a few rows with a weight takes: sizes and pointers. No torch. Everything is allocated and kept
// alive by the caller.
#pragma once

#include <cstdint>

#include "recurrence.h"

namespace seq2seq_fast {

// A small one, on one thread: that costs less than the choices a library makes for any size.
struct Linear {
  Dtype dtype;  // float32 or float64
  int64_t rows, in, out;
  const void* x;         // (rows, in), rows x_row elements apart
  const void* weight;    // (out, in), dense
  const void* bias;      // (out) or null
  void* y;               // (rows, out), rows y_row elements apart; backward: its gradient
  int64_t x_row, y_row;

  // backward only; null where not asked for
  void* d_x;       // (rows, in), rows d_x_row elements apart
  void* d_weight;  // (out, in), dense
  void* d_bias;    // (out)
  int64_t d_x_row;
  bool add_d_x, add;  // to what is there: in d_x, in d_weight and d_bias
};

}  // namespace seq2seq_fast
