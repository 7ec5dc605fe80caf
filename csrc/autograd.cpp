// How the operators meet autograd, autocast and the transforms of torch.func.
//
// In C++, because a call of a small layer costs less than a Python autograd.Function alone (CONTRIBUTING.md has the
// figures). Derivatives that the fused backward has not (of itself, forward mode, under torch.func) come from
// rnn_layer_composite, the reference in plain torch operations.
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "derivatives.h"
#include "schemas.h"

namespace seq2seq_fast {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const auto& layer_op() {
  static const auto op = find<LayerSchema>("seq2seq_fast::rnn_layer");
  return op;
}

const auto& composite_op() {
  static const auto op = find<LayerSchema>("seq2seq_fast::rnn_layer_composite");
  return op;
}

struct RnnLayer : torch::autograd::Function<RnnLayer> {
  static constexpr bool is_traceable = true;

  static variable_list forward(AutogradContext* ctx, const Tensor& input, OptionalTensor h_0, OptionalTensor c_0,
                               at::TensorList weights, OptionalTensor lengths, OptionalTensor batch_sizes,
                               const std::string& cell, bool bidirectional) {
    static const auto op = find<LayerSchema>("seq2seq_fast::rnn_layer_train");
    at::AutoDispatchBelowADInplaceOrView below;
    variable_list outputs = op.call(input, h_0, c_0, weights, lengths, batch_sizes, cell, bidirectional);
    variable_list saved{input,
                        h_0.value_or(Tensor()),
                        c_0.value_or(Tensor()),
                        lengths.value_or(Tensor()),
                        batch_sizes.value_or(Tensor()),
                        outputs.back()};
    saved.insert(saved.end(), weights.begin(), weights.end());
    ctx->save_for_backward(std::move(saved));
    ctx->saved_data["cell"] = cell;
    ctx->saved_data["bidirectional"] = bidirectional;
    ctx->set_materialize_grads(false);
    outputs.pop_back();
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& d_outputs) {
    const variable_list saved = ctx->get_saved_variables();
    const Tensor &input = saved[0], &h_0 = saved[1], &c_0 = saved[2], &reserve = saved[5];
    const auto lengths = optional(saved[3]), batch_sizes = optional(saved[4]);
    const at::TensorList weights(saved.data() + 6, saved.size() - 6);
    const std::string& cell = ctx->saved_data["cell"].toStringRef();
    const bool bidirectional = ctx->saved_data["bidirectional"].toBool();

    // edges go by the tensors there are, in the order of forward's arguments
    size_t edge = 0;
    const auto needed = [&](const Tensor& x) { return x.defined() && ctx->needs_input_grad(edge++); };
    std::array<bool, 4> needs{needed(input), needed(h_0), needed(c_0), false};
    std::vector<bool> weight_needs;
    for (const Tensor& weight : weights) {
      weight_needs.push_back(needed(weight));
      needs[3] |= weight_needs.back();
    }

    variable_list gradients;
    const bool create_graph = at::GradMode::is_enabled();
    if (create_graph || any_batched(d_outputs)) {
      variable_list arguments{input, h_0, c_0};
      arguments.insert(arguments.end(), weights.begin(), weights.end());
      std::vector<bool> wanted(needs.begin(), needs.begin() + 3);
      wanted.insert(wanted.end(), weight_needs.begin(), weight_needs.end());
      const auto reference = [&](const variable_list& x) {
        return composite_op().call(x[0], optional(x[1]), optional(x[2]), at::TensorList(x).slice(3), lengths,
                                   batch_sizes, cell, bidirectional);
      };
      gradients = reference_gradients(reference, d_outputs, arguments, wanted, create_graph);
    } else {
      static const auto op = find<BackwardSchema>("seq2seq_fast::rnn_layer_backward");
      c10::List<std::optional<Tensor>> d;
      for (const Tensor& d_output : d_outputs) d.push_back(optional(d_output));
      at::AutoDispatchBelowADInplaceOrView below;
      gradients = op.call(d, reserve, needs, input, optional(h_0), optional(c_0), weights, lengths, batch_sizes, cell,
                          bidirectional);
    }

    variable_list results;
    for (size_t k = 0; k < 3; ++k) results.push_back(needs[k] ? gradients[k] : Tensor());
    for (size_t k = 0; k < weights.size(); ++k) results.push_back(weight_needs[k] ? gradients[3 + k] : Tensor());
    // lengths, batch_sizes, cell, bidirectional
    results.resize(results.size() + 4);
    return results;
  }
};

std::vector<Tensor> rnn_layer_autograd(const Tensor& input, OptionalTensor h_0, OptionalTensor c_0,
                                       at::TensorList weights, OptionalTensor lengths, OptionalTensor batch_sizes,
                                       std::string_view cell, bool bidirectional) {
  if (transforming()) return composite_op().call(input, h_0, c_0, weights, lengths, batch_sizes, cell, bidirectional);
  const auto differentiated = [](const Tensor& x) { return x.requires_grad(); };
  const auto maybe = [&](OptionalTensor x) { return x.has_value() && differentiated(*x); };
  if (at::GradMode::is_enabled() && (differentiated(input) || maybe(h_0) || maybe(c_0) ||
                                     std::any_of(weights.begin(), weights.end(), differentiated)))
    // batch first, torch copies its input too, and programs add to theirs in place before backward
    return RnnLayer::apply(input.contiguous(), h_0, c_0, weights, lengths, batch_sizes, std::string(cell),
                           bidirectional);
  at::AutoDispatchBelowADInplaceOrView below;
  return layer_op().call(input, h_0, c_0, weights, lengths, batch_sizes, cell, bidirectional);
}

// Computes in autocast's dtype and gives the dtypes torch gives. On the CPU that of the state in a GRU and, where torch
// does not call oneDNN, in an LSTM (packed, or a single step), since it takes part in sums with it and wins; where an
// LSTM has a projection, a product and so autocast's, that of c for c alone; else autocast's.
std::vector<Tensor> rnn_layer_autocast(const Tensor& input, OptionalTensor h_0, OptionalTensor c_0,
                                       at::TensorList weights, OptionalTensor lengths, OptionalTensor batch_sizes,
                                       std::string_view cell, bool bidirectional) {
  const auto device = input.device().type();
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const auto dtype = at::autocast::get_autocast_dtype(device);
  const auto cast = [&](const Tensor& x) { return at::autocast::cached_cast(dtype, x, device); };
  const auto cast_some = [&](OptionalTensor x) {
    return x.has_value() ? std::optional<Tensor>(cast(*x)) : std::nullopt;
  };
  std::vector<Tensor> cast_weights;
  for (const Tensor& weight : weights) cast_weights.push_back(cast(weight));
  auto outputs = layer_op().call(cast(input), cast_some(h_0), cast_some(c_0), cast_weights, lengths, batch_sizes, cell,
                                 bidirectional);
  const bool padded = input.dim() == 3, projected = weights.size() / (bidirectional ? 2 : 1) % 2;
  const auto dtype_of = [&](OptionalTensor state) {
    return state.has_value() ? state->scalar_type() : input.scalar_type();
  };
  if (device == at::kCPU && projected) {
    outputs[2] = outputs[2].to(dtype_of(c_0));
  } else if (device == at::kCPU && (cell == "gru" || (cell == "lstm" && !padded))) {
    for (Tensor& output : outputs) output = output.to(dtype_of(h_0));
  }
  return outputs;
}

}  // namespace

TORCH_LIBRARY_IMPL(seq2seq_fast, Autograd, m) { m.impl("rnn_layer", rnn_layer_autograd); }

TORCH_LIBRARY_IMPL(seq2seq_fast, AutocastCPU, m) { m.impl("rnn_layer", rnn_layer_autocast); }

TORCH_LIBRARY_IMPL(seq2seq_fast, AutocastCUDA, m) { m.impl("rnn_layer", rnn_layer_autocast); }

}  // namespace seq2seq_fast
