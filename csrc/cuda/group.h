// Where a block stands: which direction, which rows of the batch, which hidden units; and what each step is to it.
#pragma once

#include "plan.h"
#include "portable.h"

namespace seq2seq_fast {

struct Group {
  const Loop& loop;
  const Plan& plan;
  int rank = int(blockIdx.x) % plan.sizes.blocks;
  int number = int(blockIdx.x) / plan.sizes.blocks;  // among all groups of both directions
  int index = number % plan.sizes.groups;            // among those of its direction
  const LoopDirection& direction = loop.direction[number / plan.sizes.groups];
  int first_unit = rank * plan.sizes.units;
  int rows = count(loop.batch);

  // Groups take the rows of the batch in turns, so that all of them have fewer where rows end early.
  __device__ int count(int64_t batch_rows) const {
    return batch_rows <= index ? 0 : (int(batch_rows) - index + plan.sizes.groups - 1) / plan.sizes.groups;
  }
  __device__ int64_t batch_row(int row) const { return int64_t(row) * plan.sizes.groups + index; }
  // Of h_0 and its like.
  __device__ int64_t state_row(int row) const {
    const int64_t i = batch_row(row);
    return loop.hx_row ? loop.hx_row[i] : i;
  }
};

// Step s of a direction, or of its way back, which takes the steps in the other order.
struct Step {
  int active = 0;  // rows of the group
  int64_t first_row = 0;

  Step() = default;
  __device__ Step(const Group& group, int s, bool downwards) {
    if (s < 0 || s >= group.loop.steps) return;
    const int64_t t = downwards ? group.loop.steps - 1 - s : s;
    active = group.count(group.loop.active[t]);
    first_row = group.loop.by_step[t];
  }
  // Of the input, the output and the reserve.
  __device__ int64_t row(const Group& group, int row) const {
    const int64_t i = group.batch_row(row);
    return first_row + (group.loop.by_row ? group.loop.by_row[i] : i);
  }
};

}  // namespace seq2seq_fast
