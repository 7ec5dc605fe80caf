// csrc/cuda as a library for the CPU: the stream of a call is its seed, the device has as many multiprocessors as asked.
#include "interface.h"

#include "bfloat16.cu"
#ifndef BFLOAT16_ONLY
#include "float16.cu"
#include "float32.cu"
#else
seq2seq_fast::Kernel seq2seq_fast::float16_kernel(Cell, LoopForm, bool) { return nullptr; }
seq2seq_fast::Kernel seq2seq_fast::float32_kernel(Cell, LoopForm, bool) { return nullptr; }
#endif

namespace seq2seq_fast {

namespace {
LoopLimits device{132, 232448, 16, 0};
std::string last_error;
}  // namespace

LoopStatus current_limits(LoopLimits& limits) {
  limits = device;
  return LoopStatus::ok;
}

LoopStatus launch(Kernel kernel, const Loop& loop, const Plan& plan, LoopForm form, void* stream) {
  if (form == LoopForm::grid) std::memset(loop.workspace, 0, plan.sizes.workspace);
  try {
    simt::launch(plan.sizes.blocks * plan.sizes.groups * loop.directions, threads,
                 form == LoopForm::cluster ? plan.sizes.blocks : 1, plan.sizes.shared_memory,
                 unsigned(uintptr_t(stream)), [&] { kernel(loop, plan); });
  } catch (const std::exception& error) {
    last_error = error.what();
    return LoopStatus::launch_failed;
  }
  return LoopStatus::ok;
}

}  // namespace seq2seq_fast

extern "C" {
void stand_in_limits(const seq2seq_fast::LoopLimits* limits) { seq2seq_fast::device = *limits; }
seq2seq_fast::LoopStatus loop_limits(int32_t, seq2seq_fast::LoopLimits* limits) {
  return seq2seq_fast::current_limits(*limits);
}
const char* loop_error(seq2seq_fast::LoopStatus) { return seq2seq_fast::last_error.c_str(); }
}
