// CUDA's side of the C interface.
#include <cuda_runtime.h>

#include <utility>

#include "interface.h"

namespace seq2seq_fast {

namespace {

thread_local cudaError_t last_error = cudaSuccess;

// Clears what CUDA would report again at the next call of anyone's.
LoopStatus failed(cudaError_t error) {
  last_error = error;
  cudaGetLastError();
  return error == cudaErrorCooperativeLaunchTooLarge ? LoopStatus::too_many_blocks : LoopStatus::launch_failed;
}

LoopStatus limits_of(int device, LoopLimits& limits) {
  int sms, shared, major, cooperative;
  const std::pair<int*, cudaDeviceAttr> wanted[] = {{&sms, cudaDevAttrMultiProcessorCount},
                                                    {&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin},
                                                    {&major, cudaDevAttrComputeCapabilityMajor},
                                                    {&cooperative, cudaDevAttrCooperativeLaunch}};
  for (const auto& [value, attribute] : wanted)
    if (cudaError_t error = cudaDeviceGetAttribute(value, attribute, device)) return failed(error);
  if (major < 8 || !cooperative) return LoopStatus::not_supported;
  limits = {sms, shared, major >= 9 ? 16 : 1, 0};
  return LoopStatus::ok;
}

}  // namespace

LoopStatus current_limits(LoopLimits& limits) {
  int device;
  if (cudaError_t error = cudaGetDevice(&device)) return failed(error);
  return limits_of(device, limits);
}

LoopStatus launch(Kernel kernel, const Loop& loop, const Plan& plan, LoopForm form, void* stream) {
  const bool cluster = form == LoopForm::cluster;
  if (cudaError_t error =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, plan.sizes.shared_memory))
    return failed(error);
  cudaLaunchAttribute attribute;
  if (cluster) {
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {unsigned(plan.sizes.blocks), 1, 1};
  } else {
    attribute.id = cudaLaunchAttributeCooperative;
    attribute.val.cooperative = 1;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = plan.sizes.blocks * plan.sizes.groups * loop.directions;
  config.blockDim = threads;
  config.dynamicSmemBytes = plan.sizes.shared_memory;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &attribute;
  config.numAttrs = 1;
  if (cluster) {
    if (plan.sizes.blocks > 8)
      if (cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1))
        return failed(error);
    int clusters = 0;
    if (cudaError_t error = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config)) return failed(error);
    if (!clusters) return LoopStatus::too_many_blocks;
  } else if (cudaError_t error =
                 cudaMemsetAsync(loop.workspace, 0, plan.sizes.workspace, static_cast<cudaStream_t>(stream))) {
    return failed(error);
  }
  // a cooperative launch of more blocks than fit is refused by CUDA itself
  if (cudaError_t error = cudaLaunchKernelEx(&config, kernel, loop, plan)) return failed(error);
  return LoopStatus::ok;
}

}  // namespace seq2seq_fast

extern "C" {
seq2seq_fast::LoopStatus loop_limits(int32_t device, seq2seq_fast::LoopLimits* limits) {
  return seq2seq_fast::limits_of(device, *limits);
}

const char* loop_error(seq2seq_fast::LoopStatus status) {
  using Status = seq2seq_fast::LoopStatus;
  switch (status) {
    case Status::ok: return "ok";
    case Status::bad_argument: return "a size, a pointer, the cell, the dtype or the form is not one that serves";
    case Status::no_workspace: return "the workspace is smaller than the plan asks";
    case Status::not_supported: return "the device has no such launch";
    case Status::too_large: return "a block's part of weight_hh and of the state is more than its shared memory";
    case Status::too_many_blocks: return "the blocks that wait for each other cannot all run at the same time";
    case Status::launch_failed: return cudaGetErrorString(seq2seq_fast::last_error);
  }
  return "no such status";
}
}
