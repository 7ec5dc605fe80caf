// A linear layer of tensors below autograd: a small one by the engine, others by torch. (rows, in) to (rows, out).
#pragma once

#include <c10/core/impl/TorchDispatchModeTLS.h>

#include "linear.h"
#include "schemas.h"
#include "tensors.h"

namespace seq2seq_fast {

// (..., width) as (rows, width).
inline Tensor rows(const Tensor& x) { return x.dim() == 2 ? x : x.reshape({-1, x.size(-1)}); }

// The parts along `dim`; a single one is no copy.
inline Tensor whole(const std::vector<Tensor>& parts, int64_t dim) {
  return parts.size() == 1 ? parts[0] : at::cat(parts, dim);
}

inline void add_to(Tensor& sum, const Tensor& x) { sum.defined() ? void(sum.add_(x)) : void(sum = x); }

// Whether torch is only to compute, with no one who traces, counts or stands in for its operations.
inline bool is_plain(const Tensor& x) {
  constexpr c10::DispatchKeySet others{c10::DispatchKey::Python, c10::DispatchKey::Functionalize};
  return !x.key_set().has_any(others) && !c10::impl::dispatch_mode_enabled();
}

// torch's product of 32 rows with a 4 x 2 weight takes 5 us, of which the work is 0.2 (Zen 4).
inline bool is_small(const Tensor& x, const Tensor& weight) {
  constexpr int64_t products = 1 << 17;
  const auto dtype = weight.scalar_type();
  return (dtype == at::kFloat || dtype == at::kDouble) && x.size(0) * weight.numel() <= products && is_plain(x);
}

// Without x and y. Keeps nothing: `weight` is dense already, or made so by the caller.
inline Linear linear_of(const Tensor& weight) {
  Linear linear = {};
  linear.dtype = weight.scalar_type() == at::kDouble ? Dtype::float64 : Dtype::float32;
  linear.out = weight.size(0);
  linear.in = weight.size(1);
  linear.weight = weight.const_data_ptr();
  return linear;
}

// x weight^T + bias, of x (..., in).
inline Tensor linear(const Tensor& x, const Tensor& weight_, const Tensor& bias_) {
  const Tensor from = rows_of(rows(x), x.scalar_type());
  const bool fits = weight_.dim() == 2 && from.size(1) == weight_.size(1) &&
                    (!bias_.defined() || bias_.sizes() == weight_.sizes().slice(0, 1));
  if (!fits || !is_small(from, weight_)) return at::linear(x, weight_, optional(bias_));
  const Tensor weight = weight_.contiguous(), bias = dense(bias_, weight.scalar_type());
  at::DimVector shape(x.sizes().begin(), x.sizes().end());
  shape.back() = weight.size(0);
  const Tensor y = empty(shape, x.options());
  Linear linear = linear_of(weight);
  linear.rows = from.size(0);
  linear.x = from.const_data_ptr();
  linear.x_row = from.stride(0);
  linear.bias = bias.defined() ? bias.const_data_ptr() : nullptr;
  linear.y = y.data_ptr();
  linear.y_row = linear.out;
  engine().linear_forward(linear);
  return y;
}

// Adds d_y weight to d_x (rows, in), or where d_x is undefined gives it.
inline Tensor linear_input_gradient(const Tensor& d_y_, const Tensor& weight_, Tensor d_x = {}) {
  if (!is_small(d_y_, weight_)) return d_x.defined() ? d_x.addmm_(d_y_, weight_) : d_y_.mm(weight_);
  const Tensor d_y = rows_of(d_y_, d_y_.scalar_type()), weight = weight_.contiguous();
  Linear linear = linear_of(weight);
  linear.add_d_x = d_x.defined();
  if (!d_x.defined()) d_x = empty({d_y.size(0), linear.in}, d_y.options());
  linear.rows = d_y.size(0);
  linear.y = const_cast<void*>(d_y.const_data_ptr());
  linear.y_row = d_y.stride(0);
  linear.d_x = d_x.data_ptr();
  linear.d_x_row = d_x.stride(0);
  engine().linear_backward(linear);
  return d_x;
}

// Adds to d_weight and d_bias, or where they are undefined gives them; null where not needed.
inline void linear_weight_gradient(const Tensor& d_y_, const Tensor& x_, const Tensor& weight, Tensor* d_weight,
                                   Tensor* d_bias) {
  if (!is_small(d_y_, weight)) {
    if (d_weight) add_to(*d_weight, d_y_.t().mm(x_));
    if (d_bias) add_to(*d_bias, d_y_.sum(0));
    return;
  }
  const Tensor d_y = rows_of(d_y_, d_y_.scalar_type()), x = rows_of(x_, x_.scalar_type());
  Linear linear = linear_of(weight);
  for (Tensor* sum : {d_weight, d_bias}) {
    if (!sum) continue;
    linear.add = sum->defined();
    if (!linear.add) *sum = sum == d_weight ? empty(weight.sizes(), d_y.options()) : empty({linear.out}, d_y.options());
  }
  linear.rows = d_y.size(0);
  linear.x = x.const_data_ptr();
  linear.x_row = x.stride(0);
  linear.y = const_cast<void*>(d_y.const_data_ptr());
  linear.y_row = d_y.stride(0);
  linear.d_weight = d_weight ? d_weight->data_ptr() : nullptr;
  linear.d_bias = d_bias ? d_bias->data_ptr() : nullptr;
  engine().linear_backward(linear);
}

}  // namespace seq2seq_fast
