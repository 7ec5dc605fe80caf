// Which elements of a turn's rows and of a block's units a thread computes: always the same unit, every so many rows.
#pragma once

#include "exchange.h"

namespace seq2seq_fast {

struct Elementwise {
  const Group& group;
  int units = group.plan.sizes.units;
  int unit = int(threadIdx.x) % units;  // of the block
  int column = group.first_unit + unit;
  int first_row = int(threadIdx.x) / units;
  int row_step = threads / units;
  int hidden = int(group.loop.hidden_size);
  bool inside = column < hidden;
  // what a row keeps from step to step, (rows, units) each
  float* h = (float*)(shared_memory() + group.plan.state);
  float* c = h + group.plan.rows * units;

  __device__ int row_of(int first, int e) const { return first + first_row + e * row_step; }
  __device__ bool computes(int e, int row, int rows) const {
    return inside && e * row_step < group.plan.rows_a_turn && row < rows;
  }
  template <class Do>
  __device__ void every_row(Do run) const {
    if (inside)
      for (int row = first_row; row < group.rows; row += row_step)
        run(row, row * units + unit, group.state_row(row) * hidden + column);
  }
};

// An element of a tensor that may be missing.
template <class E>
__device__ float value_at(const void* data, int64_t at) {
  return data ? ((const E*)data)[at].value() : 0.0f;
}

}  // namespace seq2seq_fast
