// What the machine does for interface.h: the kernels of each dtype, the device's limits, and a launch.
#pragma once

#include "plan.h"

namespace seq2seq_fast {

using Kernel = void (*)(Loop, Plan);

// One file for each dtype.
Kernel bfloat16_kernel(Cell cell, LoopForm form, bool backward);
Kernel float16_kernel(Cell cell, LoopForm form, bool backward);
Kernel float32_kernel(Cell cell, LoopForm form, bool backward);

LoopStatus current_limits(LoopLimits& limits);
LoopStatus launch(Kernel kernel, const Loop& loop, const Plan& plan, LoopForm form, void* stream);

}  // namespace seq2seq_fast
