// How the attention operators meet autograd, autocast and the transforms of torch.func; see autograd.cpp.
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include "derivatives.h"
#include "schemas.h"

namespace seq2seq_fast {
namespace {

using torch::autograd::AutogradContext;

// The arguments of one operator: the tensors a gradient may be asked for, then the masks, then the rest.
struct Dot {
  using Schema = AttentionSchema;
  using BackwardSchema = AttentionBackwardSchema;
  static constexpr const char* names[] = {"seq2seq_fast::attention", "seq2seq_fast::attention_train",
                                          "seq2seq_fast::attention_backward", "seq2seq_fast::attention_composite"};

  variable_list tensors;  // query, key, value, masks
  std::optional<Tensor> lengths, seed;
  bool causal;
  double dropout, scale;
  std::string weights, empty_rows;

  template <class Op, class... First>
  variable_list call(const Op& op, const First&... first) const {
    return op.call(first..., tensors[0], tensors[1], tensors[2], at::TensorList(tensors).slice(3), lengths, seed,
                   causal, dropout, scale, weights, empty_rows);
  }
};

struct Additive {
  using Schema = AdditiveSchema;
  using BackwardSchema = AdditiveBackwardSchema;
  static constexpr const char* names[] = {"seq2seq_fast::additive_attention", "seq2seq_fast::additive_attention_train",
                                          "seq2seq_fast::additive_attention_backward",
                                          "seq2seq_fast::additive_attention_composite"};

  variable_list tensors;  // query, key, score_weight, value, masks
  std::optional<Tensor> lengths, seed;
  std::string empty_rows;

  template <class Op, class... First>
  variable_list call(const Op& op, const First&... first) const {
    return op.call(first..., tensors[0], tensors[1], tensors[2], tensors[3], at::TensorList(tensors).slice(4), lengths,
                   empty_rows);
  }
};

enum { inference, train, backward, composite };

template <class Kind, int which>
const auto& op() {
  using Schema = std::conditional_t<which == backward, typename Kind::BackwardSchema, typename Kind::Schema>;
  static const auto found = find<Schema>(Kind::names[which]);
  return found;
}

template <class Kind>
struct AttentionFunction : torch::autograd::Function<AttentionFunction<Kind>> {
  static constexpr bool is_traceable = true;

  // `kind` holds the tensors too, which autograd sees as `tensors`.
  static variable_list forward(AutogradContext* ctx, at::TensorList tensors, const Kind& kind) {
    at::AutoDispatchBelowADInplaceOrView below;
    variable_list outputs = kind.call(op<Kind, train>());
    variable_list saved{outputs[0], outputs.back(), kind.lengths.value_or(Tensor()), kind.seed.value_or(Tensor())};
    saved.insert(saved.end(), tensors.begin(), tensors.end());
    ctx->save_for_backward(std::move(saved));
    save(ctx, kind);
    ctx->set_materialize_grads(false);
    outputs.pop_back();
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& d_outputs) {
    const variable_list saved = ctx->get_saved_variables();
    const Kind kind = restore(ctx, saved);
    std::vector<bool> needs;
    for (size_t k = 0; k < kind.tensors.size(); ++k) needs.push_back(ctx->needs_input_grad(k));
    variable_list gradients;
    const bool create_graph = at::GradMode::is_enabled();
    if (create_graph || any_batched(d_outputs)) {
      const auto reference = [&](const variable_list& tensors) {
        Kind other = kind;
        other.tensors = tensors;
        return other.call(op<Kind, composite>());
      };
      gradients = reference_gradients(reference, d_outputs, kind.tensors, needs, create_graph);
    } else {
      c10::List<std::optional<Tensor>> d;
      for (const Tensor& d_output : d_outputs) d.push_back(optional(d_output));
      c10::List<bool> wanted;
      for (const bool needed : needs) wanted.push_back(needed);
      at::AutoDispatchBelowADInplaceOrView below;
      gradients = kind.call(op<Kind, seq2seq_fast::backward>(), d, saved[0], saved[1], wanted);
    }
    for (size_t k = 0; k < gradients.size(); ++k)
      if (!needs[k]) gradients[k] = Tensor();
    gradients.emplace_back();  // kind
    return gradients;
  }

 private:
  static void save(AutogradContext* ctx, const Dot& dot) {
    ctx->saved_data["causal"] = dot.causal;
    ctx->saved_data["dropout"] = dot.dropout;
    ctx->saved_data["scale"] = dot.scale;
    ctx->saved_data["weights"] = dot.weights;
    ctx->saved_data["empty_rows"] = dot.empty_rows;
  }

  static void save(AutogradContext* ctx, const Additive& additive) {
    ctx->saved_data["empty_rows"] = additive.empty_rows;
  }

  static Kind restore(AutogradContext* ctx, const variable_list& saved) {
    Kind kind;
    kind.tensors.assign(saved.begin() + 4, saved.end());
    kind.lengths = optional(saved[2]);
    kind.seed = optional(saved[3]);
    kind.empty_rows = ctx->saved_data["empty_rows"].toStringRef();
    if constexpr (std::is_same_v<Kind, Dot>) {
      kind.causal = ctx->saved_data["causal"].toBool();
      kind.dropout = ctx->saved_data["dropout"].toDouble();
      kind.scale = ctx->saved_data["scale"].toDouble();
      kind.weights = ctx->saved_data["weights"].toStringRef();
    }
    return kind;
  }
};

template <class Kind>
variable_list differentiable(const Kind& kind) {
  if (transforming()) return kind.call(op<Kind, composite>());
  const auto differentiated = [](const Tensor& x) { return x.requires_grad(); };
  if (at::GradMode::is_enabled() && std::any_of(kind.tensors.begin(), kind.tensors.end(), differentiated))
    return AttentionFunction<Kind>::apply(at::TensorList(kind.tensors), kind);
  at::AutoDispatchBelowADInplaceOrView below;
  return kind.call(op<Kind, inference>());
}

template <class Kind>
variable_list autocast(Kind kind) {
  const auto device = kind.tensors[0].device().type();
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(
      at::autocast::get_autocast_dispatch_key_from_device_type(device));
  const auto dtype = at::autocast::get_autocast_dtype(device);
  for (Tensor& x : kind.tensors) x = at::autocast::cached_cast(dtype, x, device);
  return kind.call(op<Kind, inference>());
}

variable_list all(std::initializer_list<Tensor> first, at::TensorList masks) {
  variable_list tensors(first);
  tensors.insert(tensors.end(), masks.begin(), masks.end());
  return tensors;
}

template <bool casting>
std::vector<Tensor> attention(const Tensor& query, const Tensor& key, const Tensor& value, at::TensorList masks,
                              OptionalTensor lengths, OptionalTensor seed, bool causal, double dropout, double scale,
                              std::string_view weights, std::string_view empty_rows) {
  const Dot dot{all({query, key, value}, masks), lengths, seed, causal, dropout, scale, std::string(weights),
                std::string(empty_rows)};
  return casting ? autocast(dot) : differentiable(dot);
}

template <bool casting>
std::vector<Tensor> additive_attention(const Tensor& query, const Tensor& key, const Tensor& score_weight,
                                       const Tensor& value, at::TensorList masks, OptionalTensor lengths,
                                       std::string_view empty_rows) {
  const Additive additive{all({query, key, score_weight, value}, masks), lengths, std::nullopt,
                          std::string(empty_rows)};
  return casting ? autocast(additive) : differentiable(additive);
}

}  // namespace

TORCH_LIBRARY_IMPL(seq2seq_fast, Autograd, m) {
  m.impl("attention", attention<false>);
  m.impl("additive_attention", additive_attention<false>);
}

TORCH_LIBRARY_IMPL(seq2seq_fast, AutocastCPU, m) {
  m.impl("attention", attention<true>);
  m.impl("additive_attention", additive_attention<true>);
}

TORCH_LIBRARY_IMPL(seq2seq_fast, AutocastCUDA, m) {
  m.impl("attention", attention<true>);
  m.impl("additive_attention", additive_attention<true>);
}

}  // namespace seq2seq_fast
