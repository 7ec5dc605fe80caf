// The operators' C++ types, as seq2seq_fast/ops.py defines their schemas.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <array>
#include <string_view>
#include <vector>

namespace seq2seq_fast {

using at::Tensor;
using OptionalTensor = const std::optional<Tensor>&;

inline std::optional<Tensor> optional(const Tensor& x) { return x.defined() ? std::optional<Tensor>(x) : std::nullopt; }

// rnn_layer, rnn_layer_train, rnn_layer_composite
using LayerSchema = std::vector<Tensor>(const Tensor& input, OptionalTensor h_0, OptionalTensor c_0,
                                        at::TensorList weights, OptionalTensor lengths, OptionalTensor batch_sizes,
                                        std::string_view cell, bool bidirectional);
using BackwardSchema = std::vector<Tensor>(const c10::List<std::optional<Tensor>>& d_outputs, const Tensor& reserve,
                                           std::array<bool, 4> needs, const Tensor& input, OptionalTensor h_0,
                                           OptionalTensor c_0, at::TensorList weights, OptionalTensor lengths,
                                           OptionalTensor batch_sizes, std::string_view cell, bool bidirectional);

// attention, attention_train, attention_composite
using AttentionSchema = std::vector<Tensor>(const Tensor& query, const Tensor& key, const Tensor& value,
                                            at::TensorList masks, OptionalTensor lengths, OptionalTensor seed,
                                            bool causal, double dropout, double scale, std::string_view weights,
                                            std::string_view empty_rows);
using AttentionBackwardSchema = std::vector<Tensor>(const c10::List<std::optional<Tensor>>& d_outputs,
                                                    const Tensor& output, const Tensor& lse, c10::List<bool> needs,
                                                    const Tensor& query, const Tensor& key, const Tensor& value,
                                                    at::TensorList masks, OptionalTensor lengths, OptionalTensor seed,
                                                    bool causal, double dropout, double scale, std::string_view weights,
                                                    std::string_view empty_rows);

// additive_attention, additive_attention_train, additive_attention_composite
using AdditiveSchema = std::vector<Tensor>(const Tensor& query, const Tensor& key, const Tensor& score_weight,
                                           const Tensor& value, at::TensorList masks, OptionalTensor lengths,
                                           std::string_view empty_rows);
using AdditiveBackwardSchema = std::vector<Tensor>(const c10::List<std::optional<Tensor>>& d_outputs,
                                                   const Tensor& output, const Tensor& lse, c10::List<bool> needs,
                                                   const Tensor& query, const Tensor& key, const Tensor& score_weight,
                                                   const Tensor& value, at::TensorList masks, OptionalTensor lengths,
                                                   std::string_view empty_rows);

// search
using SearchSchema = std::vector<Tensor>(const Tensor& start, const Tensor& embedding, OptionalTensor context,
                                         const Tensor& h_0, OptionalTensor c_0, at::TensorList weights,
                                         std::string_view cell, const Tensor& weight_out, OptionalTensor bias_out,
                                         OptionalTensor keys, OptionalTensor values, OptionalTensor lengths,
                                         OptionalTensor mask, OptionalTensor weight_query, OptionalTensor bias_query,
                                         OptionalTensor score_weight, std::string_view score,
                                         std::string_view empty_rows, int64_t max_steps, std::optional<int64_t> eos,
                                         int64_t pad, int64_t beams, double length_penalty, OptionalTensor forced,
                                         OptionalTensor uniforms, double temperature, int64_t top_k, double top_p,
                                         bool alphas);

template <class Schema>
c10::TypedOperatorHandle<Schema> find(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Schema>();
}

}  // namespace seq2seq_fast
