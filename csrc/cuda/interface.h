// The C interface of loop.h over launch.h. Defines it: one file of a library includes this.
#pragma once

#include "launch.h"

namespace seq2seq_fast {
namespace {

bool valid_sizes(const Loop& loop, LoopForm form) {
  return loop.cell >= Cell::gru && loop.cell <= Cell::rnn_relu && loop.dtype >= LoopDtype::float32 &&
         loop.dtype <= LoopDtype::float16 && form >= LoopForm::grid && form <= LoopForm::cluster &&
         loop.directions >= 1 && loop.directions <= 2 && loop.steps >= 0 && loop.steps < INT32_MAX &&
         loop.hidden_size >= 0 && loop.hidden_size <= 1 << 20 && loop.batch >= 0 && loop.batch <= 1 << 24;
}

bool valid_pointers(const Loop& loop, bool backward) {
  const bool lstm = loop.cell == Cell::lstm;
  if (loop.steps && !(loop.active && loop.by_step)) return false;
  for (int d = 0; d < loop.directions; ++d) {
    const LoopDirection& direction = loop.direction[d];
    if (!direction.weight_hh) return false;
    if (backward && loop.steps && !(direction.reserve && direction.d_gates)) return false;
    if (!backward && !(direction.h_n && (direction.c_n || !lstm))) return false;
    if (!backward && loop.steps && !(direction.x_gates && direction.output)) return false;
  }
  return true;
}

LoopStatus run(const Loop& loop, LoopForm form, bool backward, void* stream) {
  if (!valid_sizes(loop, form) || !valid_pointers(loop, backward)) return LoopStatus::bad_argument;
  if (!loop.batch || !loop.hidden_size) return LoopStatus::ok;
  LoopLimits limits;
  Plan plan;
  if (LoopStatus status = current_limits(limits); status != LoopStatus::ok) return status;
  if (LoopStatus status = choose(loop, form, backward, limits, plan); status != LoopStatus::ok) return status;
  if (loop.workspace_size < plan.sizes.workspace || (plan.sizes.workspace && !loop.workspace))
    return LoopStatus::no_workspace;
  const auto kernel = loop.dtype == LoopDtype::float32    ? float32_kernel
                      : loop.dtype == LoopDtype::bfloat16 ? bfloat16_kernel
                                                          : float16_kernel;
  return launch(kernel(loop.cell, form, backward), loop, plan, form, stream);
}

}  // namespace
}  // namespace seq2seq_fast

extern "C" {
seq2seq_fast::LoopStatus loop_plan(const seq2seq_fast::Loop* loop, seq2seq_fast::LoopForm form, int32_t backward,
                                   const seq2seq_fast::LoopLimits* limits, seq2seq_fast::LoopPlan* sizes) {
  *sizes = {};
  if (!seq2seq_fast::valid_sizes(*loop, form)) return seq2seq_fast::LoopStatus::bad_argument;
  if (!loop->batch || !loop->hidden_size) return seq2seq_fast::LoopStatus::ok;
  seq2seq_fast::Plan plan{};
  const seq2seq_fast::LoopStatus status = seq2seq_fast::choose(*loop, form, backward, *limits, plan);
  if (status == seq2seq_fast::LoopStatus::ok) *sizes = plan.sizes;
  return status;
}

seq2seq_fast::LoopStatus loop_forward(const seq2seq_fast::Loop* loop, seq2seq_fast::LoopForm form, void* stream) {
  return seq2seq_fast::run(*loop, form, false, stream);
}

seq2seq_fast::LoopStatus loop_backward(const seq2seq_fast::Loop* loop, seq2seq_fast::LoopForm form, void* stream) {
  return seq2seq_fast::run(*loop, form, true, stream);
}
}
