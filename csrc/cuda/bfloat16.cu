#include "kernels.h"

seq2seq_fast::Kernel seq2seq_fast::bfloat16_kernel(Cell cell, LoopForm form, bool backward) {
  return kernel_for<BFloat16>(cell, form, backward);
}
