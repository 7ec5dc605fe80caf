// What the operators' CPU kernels do with tensors before they hand out pointers.
#pragma once

#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include "cpu/block.h"
#include "cpu/team.h"

namespace seq2seq_fast {

using at::Tensor;

// A forked child has none of the threads that libgomp believes in, and would wait for them for ever.
inline bool forked = false;

inline int threads() {
  static const bool watching = pthread_atfork(nullptr, nullptr, [] { forked = true; }) == 0;
  return watching && !forked ? usable_threads(at::get_num_threads()) : 1;
}

// Tensor::to, without the 0.2 us of a call that has nothing to do.
inline Tensor in_dtype(const Tensor& x, at::ScalarType dtype) { return x.scalar_type() == dtype ? x : x.to(dtype); }

// `x` in the dtype of the loop with its last dimension dense; undefined stays so.
inline Tensor rows_of(const Tensor& x, at::ScalarType dtype) {
  if (!x.defined()) return x;
  const Tensor y = in_dtype(x, dtype);
  return y.stride(-1) == 1 || y.size(-1) == 1 ? y : y.contiguous();
}

inline Tensor dense(const Tensor& x, at::ScalarType dtype) {
  if (!x.defined()) return x;
  const Tensor y = in_dtype(x, dtype);
  return y.is_contiguous() ? y : y.contiguous();
}

// at::empty, without the 0.4 us of its dispatch; with it where it may have to fill what it gives.
inline Tensor empty(at::IntArrayRef shape, const at::TensorOptions& options) {
  if (at::globalContext().deterministicAlgorithms()) return at::empty(shape, options);
  return Tensor(at::detail::empty_cpu(shape, options));
}

// The same, where it is large in a kept block.
inline Tensor fresh(at::IntArrayRef shape, const at::TensorOptions& options) {
  const int64_t bytes = c10::multiply_integers(shape) * int64_t(options.dtype().itemsize());
  if (bytes < Block::large || bytes > Block::most_kept || at::globalContext().deterministicAlgorithms()) {
    const Tensor x = empty(shape, options);
    prefer_large_pages(x.data_ptr(), bytes);
    return x;
  }
  auto* const block = new Block(bytes);
  at::DataPtr data(block->data(), block, [](void* given) { delete static_cast<Block*>(given); }, at::kCPU);
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, std::move(data), c10::GetCPUAllocator(), true);
  Tensor x = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                      options.dtype());
  x.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return x;
}

}  // namespace seq2seq_fast
