#include "kernels.h"

seq2seq_fast::Kernel seq2seq_fast::float32_kernel(Cell cell, LoopForm form, bool backward) {
  return kernel_for<Float32>(cell, form, backward);
}
