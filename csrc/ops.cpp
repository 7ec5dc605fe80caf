// The operators on the CPU: checks, allocation, and the pointers that the time loop takes.
//
// seq2seq_fast/ops.py has the schemas and says what each operator returns; autograd.cpp has their derivatives.
#include <ATen/Functions.h>
#include <torch/library.h>

#include <algorithm>
#include <numeric>

#include "cpu/team.h"
#include "names.h"
#include "recurrence.h"
#include "schemas.h"
#include "tensors.h"

namespace seq2seq_fast {
namespace {

using Offsets = c10::SmallVector<int64_t, 64>;

// seq2seq_fast/ops.py has the same table
int64_t slots_of(Cell cell) { return cell == Cell::gru ? 5 : cell == Cell::lstm ? 6 : 1; }

// A layer's arguments, checked, with the sizes read off them.
struct Problem {
  Cell cell;
  int64_t directions, per_direction, input_size, hidden_size, state_size, steps, batch, rows;
  bool packed, single_step, has_bias, projected;

  Offsets order, active, first, by_step, by_row;
  Offsets output_by_step, output_by_row;
  bool padding = false;  // some rows end before the last step

  Problem(const Tensor& input, OptionalTensor h_0, OptionalTensor c_0, at::TensorList weights, OptionalTensor lengths,
          OptionalTensor batch_sizes, std::string_view cell_name, bool bidirectional);

  // (D, B, size), or of a single step (B, size)
  at::DimVector state_shape(int64_t size) const {
    return single_step ? at::DimVector{batch, size} : at::DimVector{directions, batch, size};
  }
  at::DimVector h_shape() const { return state_shape(state_size); }
  at::DimVector c_shape() const { return state_shape(hidden_size); }
  at::DimVector output_shape() const {
    const int64_t width = directions * state_size;
    if (packed) return {rows, width};
    return single_step ? at::DimVector{batch, width} : at::DimVector{steps, batch, width};
  }
  at::DimVector reserve_shape(const Tensor& input) const {
    const int64_t all = input.dim() == 2 ? input.size(0) : input.size(0) * input.size(1);
    return {directions, all, slots_of(cell) + projected, padded(hidden_size)};
  }

  // Where the rows of a tensor laid out as the input start.
  void offsets(const Tensor& x, Offsets& step, Offsets& row) const {
    const int64_t row_stride = x.stride(x.dim() - 2);
    step.resize(steps);
    row.resize(batch);
    for (int64_t t = 0; t < steps; ++t) step[t] = packed ? first[t] * row_stride : single_step ? 0 : t * x.stride(0);
    for (int64_t i = 0; i < batch; ++i) row[i] = order[i] * row_stride;
  }

 private:
  void check_weights(at::TensorList weights) const;
  void check_state(const char* name, OptionalTensor state, at::IntArrayRef shape, const Tensor& input) const;
  void read_batch_sizes(const Tensor& batch_sizes);
  void read_lengths(const Tensor& lengths);
};

void check_same(const char* name, const Tensor& tensor, const Tensor& input, bool value_error = false) {
  TORCH_CHECK(tensor.device() == input.device(), name, ": expected a tensor on ", input.device(),
              " like input, got one on ", tensor.device());
  if (tensor.scalar_type() == input.scalar_type()) return;
  if (value_error)
    TORCH_CHECK_VALUE(false, "RNN input dtype (", input.scalar_type(), ") does not match weight dtype (",
                      tensor.scalar_type(), "): convert input or the layer, so that both are the same");
  TORCH_CHECK(false, name, ": expected dtype ", input.scalar_type(), " like input, got ", tensor.scalar_type());
}

Problem::Problem(const Tensor& input, OptionalTensor h_0, OptionalTensor c_0, at::TensorList weights,
                 OptionalTensor lengths, OptionalTensor batch_sizes, std::string_view cell_name, bool bidirectional)
    : cell(cell_named(cell_name)), directions(bidirectional ? 2 : 1) {
  packed = batch_sizes.has_value();
  single_step = !packed && input.dim() == 2;
  TORCH_CHECK(packed ? input.dim() == 2 : single_step || input.dim() == 3, "input must have ", packed ? 2 : 3,
              " dimensions, got ", input.dim());
  TORCH_CHECK(!(single_step && bidirectional), "input: a single step (B, I) has one direction, got bidirectional=True");
  per_direction = int64_t(weights.size()) / directions;
  TORCH_CHECK(per_direction >= 2 && per_direction <= 5 && int64_t(weights.size()) == per_direction * directions,
              "weights: expected weight_ih, weight_hh, with bias bias_ih, bias_hh, and with a projection weight_hr for "
              "each of ",
              directions, " directions, got ", weights.size(), " tensors");
  has_bias = per_direction >= 4;
  projected = per_direction % 2;
  TORCH_CHECK(!projected || cell == Cell::lstm, "weight_hr: only the LSTM has a projection, got one for ", cell_name);
  TORCH_CHECK(weights[0].dim() == 2 && weights[1].dim() == 2, "weight_ih, weight_hh: expected 2-D, got ",
              weights[0].dim(), "-D and ", weights[1].dim(), "-D");
  input_size = weights[0].size(1);
  state_size = weights[1].size(1);
  hidden_size = state_size;
  if (projected) {
    const Tensor& weight_hr = weights[per_direction - 1];
    TORCH_CHECK(weight_hr.dim() == 2 && weight_hr.size(0) > 0 && weight_hr.size(0) < weight_hr.size(1),
                "weight_hr: expected (P, H) with 0 < P < H, got ", weight_hr.sizes());
    hidden_size = weight_hr.size(1);
  }
  check_weights(weights);
  check_same("weight_ih", weights[0], input, !single_step);
  TORCH_CHECK(input.size(-1) == input_size, "input.size(-1) must be equal to input_size. Expected ", input_size,
              ", got ", input.size(-1));

  if (packed) {
    TORCH_CHECK(!lengths.has_value(), "lengths: a packed input carries its own, as batch_sizes; got both");
    read_batch_sizes(*batch_sizes);
    TORCH_CHECK(input.size(0) == rows, "batch_sizes: expected to sum to the ", input.size(0), " rows of input, got ",
                rows);
  } else {
    steps = single_step ? 1 : input.size(0);
    batch = input.size(single_step ? 0 : 1);
    TORCH_CHECK(steps > 0, "input: Expected sequence length to be larger than 0 in RNN");
    if (lengths.has_value()) {
      TORCH_CHECK(!single_step, "lengths: a single step (B, I) has none");
      read_lengths(*lengths);
    } else {
      active.assign(steps, batch);
    }
  }
  first.resize(steps);
  std::exclusive_scan(active.begin(), active.end(), first.begin(), int64_t(0));
  rows = first.back() + active.back();
  padding = !packed && rows < steps * batch;
  if (order.empty()) {
    order.resize(batch);
    std::iota(order.begin(), order.end(), 0);
  }
  check_state("h_0", h_0, h_shape(), input);
  if (cell == Cell::lstm) {
    check_state("c_0", c_0, c_shape(), input);
  } else {
    TORCH_CHECK(!c_0.has_value(), "c_0: only the LSTM has a cell state, got one for ", cell_name);
  }
}

void Problem::check_weights(at::TensorList weights) const {
  const int64_t G = gates_of(cell) * hidden_size;
  static const char* const names[] = {"weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr"};
  const at::DimVector shapes[] = {{G, input_size}, {G, state_size}, {G}, {G}, {state_size, hidden_size}};
  for (size_t k = 0; k < weights.size(); ++k) {
    const int64_t place = int64_t(k) % per_direction, kind = projected && place == per_direction - 1 ? 4 : place;
    const at::IntArrayRef expected = shapes[kind];
    TORCH_CHECK(weights[k].sizes() == expected, names[kind], ": expected shape ", expected, ", got ",
                weights[k].sizes());
    if (k) check_same(names[kind], weights[k], weights[0]);
  }
}

void Problem::check_state(const char* name, OptionalTensor state, at::IntArrayRef shape, const Tensor& input) const {
  if (!state.has_value()) return;
  TORCH_CHECK(state->sizes() == shape, name, ": Expected hidden size ", shape, ", got ", state->sizes());
  check_same(name, *state, input);
}

void check_integers(const char* name, const Tensor& values) {
  TORCH_CHECK(values.is_cpu() && values.scalar_type() == at::kLong && values.dim() == 1, name,
              ": expected a 1-D int64 tensor on the CPU, got ", values.dim(), "-D ", values.scalar_type(), " on ",
              values.device());
}

void Problem::read_batch_sizes(const Tensor& batch_sizes) {
  check_integers("batch_sizes", batch_sizes);
  const Tensor sizes = batch_sizes.contiguous();
  const int64_t* size = sizes.const_data_ptr<int64_t>();
  steps = sizes.numel();
  TORCH_CHECK(steps > 0, "batch_sizes: Expected sequence length to be larger than 0 in RNN");
  batch = size[0];
  rows = 0;
  for (int64_t t = 0; t < steps; ++t) {
    TORCH_CHECK(size[t] >= 0 && (t == 0 || size[t] <= size[t - 1]),
                "batch_sizes: expected sizes that never increase and are not negative, got ", size[t], " at step ", t);
    active.push_back(size[t]);
    rows += size[t];
  }
}

void Problem::read_lengths(const Tensor& lengths) {
  check_integers("lengths", lengths);
  TORCH_CHECK(lengths.numel() == batch, "lengths: expected one for each of ", batch, " rows, got ", lengths.numel());
  const Tensor all = lengths.contiguous();
  const int64_t* length = all.const_data_ptr<int64_t>();
  order.resize(batch);
  std::iota(order.begin(), order.end(), 0);
  active.assign(steps, 0);
  for (int64_t i = 0; i < batch; ++i) {
    TORCH_CHECK(length[i] >= 0 && length[i] <= steps, "lengths: expected 0 <= length <= ", steps,
                ", the steps of input, got ", length[i], " for row ", i);
    if (length[i]) ++active[length[i] - 1];
  }
  for (int64_t t = steps - 2; t >= 0; --t) active[t] += active[t + 1];
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return length[a] > length[b]; });
}

// float16, and bfloat16 where the processor has no instructions for it, are computed in float32.
at::ScalarType compute_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
    case at::kDouble: return dtype;
    case at::kBFloat16: return engine().bfloat16 ? at::kBFloat16 : at::kFloat;
    case at::kHalf: return at::kFloat;
    default: TORCH_CHECK_VALUE(false, "input: expected float32, float64, bfloat16 or float16, got ", dtype);
  }
}

Dtype loop_dtype(at::ScalarType dtype) {
  return dtype == at::kFloat ? Dtype::float32 : dtype == at::kDouble ? Dtype::float64 : Dtype::bfloat16;
}

at::ScalarType sum_dtype(at::ScalarType compute) { return compute == at::kDouble ? at::kDouble : at::kFloat; }

const void* pointer(const Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }
void* mutable_pointer(const Tensor& x) { return x.defined() ? x.data_ptr() : nullptr; }
char* offset(const Tensor& x, int64_t elements) {
  return x.defined() ? static_cast<char*>(x.data_ptr()) + elements * x.element_size() : nullptr;
}

// The part of a layer that forward and backward share, with the tensors it points into.
struct Call {
  at::ScalarType dtype;
  Tensor input, h_0, c_0;
  c10::SmallVector<Tensor, 8> weights;
  Layer layer;

  Call(Problem& p, const Tensor& input_, OptionalTensor h, OptionalTensor c, at::TensorList weights_)
      : dtype(compute_dtype(input_.scalar_type())), input(rows_of(input_, dtype)) {
    h_0 = dense(h.value_or(Tensor()), dtype);
    c_0 = dense(c.value_or(Tensor()), dtype);
    for (const Tensor& weight : weights_) weights.push_back(dense(weight, dtype));
    p.offsets(input, p.by_step, p.by_row);
    layer = {};
    layer.cell = p.cell;
    layer.dtype = loop_dtype(dtype);
    layer.input_size = p.input_size;
    layer.hidden_size = p.hidden_size;
    layer.state_size = p.state_size;
    layer.sequence = {p.steps, p.batch, p.rows, p.active.data(), p.first.data()};
    layer.input = {const_cast<void*>(input.const_data_ptr()), p.by_step.data(), p.by_row.data()};
    layer.hx_row = p.order.data();
    layer.directions = int(p.directions);
    layer.threads = threads();
    for (int64_t d = 0; d < p.directions; ++d) {
      Direction& direction = layer.direction[d];
      const Tensor* w = &weights[d * p.per_direction];
      direction.weight_ih = pointer(w[0]);
      direction.weight_hh = pointer(w[1]);
      if (p.has_bias) {
        direction.bias_ih = pointer(w[2]);
        direction.bias_hh = pointer(w[3]);
      }
      if (p.projected) direction.weight_hr = pointer(w[p.per_direction - 1]);
      direction.h_0 = offset(h_0, d * p.batch * p.state_size);
      direction.c_0 = offset(c_0, d * p.batch * p.hidden_size);
      direction.reverse = d == 1;
    }
  }
};

void set_output(Problem& p, Layer& layer, const Tensor& output) {
  p.offsets(output, p.output_by_step, p.output_by_row);
  layer.output = {mutable_pointer(output), p.output_by_step.data(), p.output_by_row.data()};
}

std::vector<Tensor> forward(const Tensor& input, OptionalTensor h_0, OptionalTensor c_0, at::TensorList weights,
                            OptionalTensor lengths, OptionalTensor batch_sizes, std::string_view cell,
                            bool bidirectional, bool train) {
  Problem p(input, h_0, c_0, weights, lengths, batch_sizes, cell, bidirectional);
  Call call(p, input, h_0, c_0, weights);
  const auto options = input.options().dtype(call.dtype);
  const Tensor output = p.padding ? at::zeros(p.output_shape(), options) : fresh(p.output_shape(), options);
  std::vector<Tensor> outputs{output, empty(p.h_shape(), options)};
  if (p.cell == Cell::lstm) outputs.push_back(empty(p.c_shape(), options));
  Tensor reserve;
  if (train) reserve = fresh(p.reserve_shape(input), options.dtype(sum_dtype(call.dtype)));
  if (p.rows) {
    set_output(p, call.layer, output);
    for (int64_t d = 0; d < p.directions; ++d) {
      Direction& direction = call.layer.direction[d];
      direction.h_n = offset(outputs[1], d * p.batch * p.state_size);
      if (p.cell == Cell::lstm) direction.c_n = offset(outputs[2], d * p.batch * p.hidden_size);
      if (train) direction.reserve = offset(reserve, d * reserve.stride(0));
    }
    engine().forward(call.layer);
  } else {
    const Tensor* states[] = {&call.h_0, &call.c_0};
    for (size_t k = 1; k < outputs.size(); ++k)
      states[k - 1]->defined() ? outputs[k].copy_(*states[k - 1]) : outputs[k].zero_();
  }
  for (Tensor& out : outputs) out = in_dtype(out, input.scalar_type());
  if (train) outputs.push_back(reserve);
  return outputs;
}

std::vector<Tensor> rnn_layer(const Tensor& input, OptionalTensor h_0, OptionalTensor c_0, at::TensorList weights,
                              OptionalTensor lengths, OptionalTensor batch_sizes, std::string_view cell,
                              bool bidirectional) {
  return forward(input, h_0, c_0, weights, lengths, batch_sizes, cell, bidirectional, false);
}

std::vector<Tensor> rnn_layer_train(const Tensor& input, OptionalTensor h_0, OptionalTensor c_0, at::TensorList weights,
                                    OptionalTensor lengths, OptionalTensor batch_sizes, std::string_view cell,
                                    bool bidirectional) {
  return forward(input, h_0, c_0, weights, lengths, batch_sizes, cell, bidirectional, true);
}

std::vector<Tensor> rnn_layer_backward(const c10::List<std::optional<Tensor>>& d_outputs, const Tensor& reserve,
                                       std::array<bool, 4> needs, const Tensor& input, OptionalTensor h_0,
                                       OptionalTensor c_0, at::TensorList weights, OptionalTensor lengths,
                                       OptionalTensor batch_sizes, std::string_view cell, bool bidirectional) {
  Problem p(input, h_0, c_0, weights, lengths, batch_sizes, cell, bidirectional);
  Call call(p, input, h_0, c_0, weights);
  const size_t states = p.cell == Cell::lstm ? 2 : 1;
  TORCH_CHECK(d_outputs.size() == 1 + states, "d_outputs: expected ", 1 + states, " gradients, got ", d_outputs.size());
  const auto d_of = [&](size_t k, at::IntArrayRef shape) {
    const Tensor d = k < d_outputs.size() ? d_outputs.get(k).value_or(Tensor()) : Tensor();
    TORCH_CHECK(!d.defined() || d.sizes() == shape, "d_outputs: expected shape ", shape, " at ", k, ", got ",
                d.sizes());
    return d;
  };
  const Tensor d_output = rows_of(d_of(0, p.output_shape()), call.dtype);
  const Tensor d_h_n = dense(d_of(1, p.h_shape()), call.dtype), d_c_n = dense(d_of(2, p.c_shape()), call.dtype);
  TORCH_CHECK(reserve.sizes() == p.reserve_shape(input) && reserve.is_contiguous() &&
                  reserve.scalar_type() == sum_dtype(call.dtype),
              "reserve: expected the one that rnn_layer_train gave for the same arguments, of shape ",
              p.reserve_shape(input), ", got ", reserve.sizes());

  const auto options = input.options().dtype(call.dtype);
  const auto nothing = [&] { return empty({0}, input.options()); };  // one each: results never share memory
  std::vector<Tensor> gradients;
  gradients.push_back(!needs[0]              ? nothing()
                      : p.padding || !p.rows ? at::zeros(input.sizes(), options)
                                             : fresh(input.sizes(), options));
  const auto state_gradient = [&](bool needed, OptionalTensor state, const Tensor& d_n) {
    if (!needed || !state.has_value()) return nothing();
    if (p.padding || !p.rows) return d_n.defined() ? d_n.clone() : at::zeros(state->sizes(), options);
    return empty(state->sizes(), options);
  };
  gradients.push_back(state_gradient(needs[1], h_0, d_h_n));
  gradients.push_back(state_gradient(needs[2], c_0, d_c_n));
  for (const Tensor& weight : call.weights)
    gradients.push_back(!needs[3] ? nothing()
                        : p.rows  ? fresh(weight.sizes(), options.dtype(sum_dtype(call.dtype)))
                                  : at::zeros(weight.sizes(), options));
  if (p.rows) {
    Layer& layer = call.layer;
    set_output(p, layer, d_output.defined() ? d_output : empty({0, 0, 0}, options));
    if (!d_output.defined()) layer.output.data = nullptr;
    Offsets by_step, by_row;
    if (needs[0]) {
      p.offsets(gradients[0], by_step, by_row);
      layer.d_input = {gradients[0].data_ptr(), by_step.data(), by_row.data()};
    }
    for (int64_t d = 0; d < p.directions; ++d) {
      Direction& direction = layer.direction[d];
      const int64_t h = d * p.batch * p.state_size, c = d * p.batch * p.hidden_size;
      direction.reserve = offset(reserve, d * reserve.stride(0));
      direction.d_h_n = offset(d_h_n, h);
      direction.d_c_n = offset(d_c_n, c);
      if (gradients[1].numel()) direction.d_h_0 = offset(gradients[1], h);
      if (gradients[2].numel()) direction.d_c_0 = offset(gradients[2], c);
      if (!needs[3]) continue;
      const Tensor* d_weights = &gradients[3 + d * p.per_direction];
      direction.d_weight_ih = d_weights[0].data_ptr();
      direction.d_weight_hh = d_weights[1].data_ptr();
      if (p.has_bias) {
        direction.d_bias_ih = d_weights[2].data_ptr();
        direction.d_bias_hh = d_weights[3].data_ptr();
      }
      if (p.projected) direction.d_weight_hr = d_weights[p.per_direction - 1].data_ptr();
    }
    engine().backward(layer);
  }
  for (Tensor& gradient : gradients) gradient = in_dtype(gradient, input.scalar_type());
  return gradients;
}

std::string capability() { return engine().name; }

double measure_peak(int64_t asked) {
  TORCH_CHECK_VALUE(asked > 0 && asked <= 1024, "threads: expected 1 to 1024, got ", asked);
  return engine().peak(usable_threads(int(asked)));
}

}  // namespace

TORCH_LIBRARY_IMPL(seq2seq_fast, CPU, m) {
  m.impl("rnn_layer", rnn_layer);
  m.impl("rnn_layer_train", rnn_layer_train);
  m.impl("rnn_layer_backward", rnn_layer_backward);
}

TORCH_LIBRARY_IMPL(seq2seq_fast, CompositeExplicitAutograd, m) {
  m.impl("capability", capability);
  m.impl("measure_peak", measure_peak);
}

}  // namespace seq2seq_fast
