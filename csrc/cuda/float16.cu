#include "kernels.h"

seq2seq_fast::Kernel seq2seq_fast::float16_kernel(Cell cell, LoopForm form, bool backward) {
  return kernel_for<Float16>(cell, form, backward);
}
