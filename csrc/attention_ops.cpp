// The attention operators on the CPU: checks, allocation, and the pointers that the loops take.
//
// seq2seq_fast/attention_ops.py has the schemas, reference_attention.py says what each operator returns.
#include <torch/library.h>

#include <cmath>

#include "attention.h"
#include "names.h"
#include "schemas.h"
#include "tensors.h"

namespace seq2seq_fast {
namespace {

// What attention reads: the operator's arguments, checked. The additive score comes as one head.
struct Arguments {
  Tensor query, key, value, score_weight;
  std::vector<Tensor> masks;
  Tensor lengths;
  Attention attention = {};
  at::ScalarType given_dtype, dtype;  // of the arguments, and of the loop
  at::TensorOptions options;          // of what the loop writes

  Arguments(const Tensor& query_, const Tensor& key_, const Tensor& value_, const Tensor& score_weight_,
            const std::vector<Tensor>& masks_, OptionalTensor lengths_, std::string_view empty_rows)
      : query(query_), key(key_), value(value_), score_weight(score_weight_), masks(masks_) {
    check();
    given_dtype = query.scalar_type();
    dtype = query.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
    options = query.options().dtype(dtype);
    attention.dtype = dtype == at::kDouble ? Dtype::float64 : Dtype::float32;
    attention.batch = query.size(0);
    attention.heads = query.size(1);
    attention.queries = query.size(2);
    attention.width = query.size(3);
    attention.kv_heads = key.size(1);
    attention.keys = key.size(2);
    attention.value_width = value.size(3);
    attention.empty_rows = empty_rows_named(empty_rows);
    attention.dropout.scale = 1;
    attention.threads = threads();
    query = rows_of(query, dtype);
    key = rows_of(key, dtype);
    value = rows_of(value, dtype);
    attention.query = heads(query);
    attention.key = heads(key);
    attention.value = heads(value);
    if (score_weight.defined()) {
      score_weight = dense(score_weight, dtype);
      attention.score_weight = score_weight.const_data_ptr();
    }
    attention.masks = int(masks.size());
    for (size_t k = 0; k < masks.size(); ++k) attention.mask[k] = read_mask(masks[k]);
    if (lengths_.has_value()) read_lengths(*lengths_);
  }

  static Heads heads(const Tensor& x) {
    return {const_cast<void*>(x.const_data_ptr()), x.stride(0), x.stride(1), x.stride(2)};
  }

  bool nothing() const { return !attention.batch || !attention.heads || !attention.queries || !attention.keys; }

 private:
  void check() const {
    const Tensor* const tensors[] = {&query, &key, &value};
    const char* const names[] = {"query", "key", "value"};
    for (int k = 0; k < 3; ++k) {
      TORCH_CHECK(tensors[k]->dim() == 4, names[k], ": expected 4 dimensions (B, H, L, E), got ", tensors[k]->dim());
      TORCH_CHECK(tensors[k]->scalar_type() == query.scalar_type(), names[k], ": expected dtype ", query.scalar_type(),
                  " like query, got ", tensors[k]->scalar_type());
    }
    TORCH_CHECK_VALUE(at::isFloatingType(query.scalar_type()), "query: expected a floating dtype, got ",
                      query.scalar_type());
    TORCH_CHECK(key.size(0) == query.size(0) && key.size(3) == query.size(3), "key: expected a batch of ",
                query.size(0), " and a width of ", query.size(3), " like query, got ", key.size(0), " and ",
                key.size(3));
    TORCH_CHECK(value.size(0) == key.size(0) && value.size(1) == key.size(1) && value.size(2) == key.size(2),
                "value: expected ", key.sizes().slice(0, 3), " like key, then its width, got ", value.sizes());
    TORCH_CHECK(key.size(1) && query.size(1) % key.size(1) == 0, "query: expected its heads to be a multiple of key's ",
                key.size(1), ", got ", query.size(1));
    TORCH_CHECK(masks.size() <= 2, "masks: expected at most 2, got ", masks.size());
  }

  Mask read_mask(Tensor& mask) {
    const std::array<int64_t, 4> shape{attention.batch, attention.heads, attention.queries, attention.keys};
    TORCH_CHECK(mask.dim() == 4, "masks: expected 4 dimensions, got ", mask.dim());
    const bool boolean = mask.scalar_type() == at::kBool;
    TORCH_CHECK(boolean || mask.scalar_type() == given_dtype, "masks: expected bool or ", given_dtype,
                " like query, got ", mask.scalar_type());
    if (!boolean) mask = in_dtype(mask, dtype);
    Mask read = {mask.const_data_ptr(), {}, boolean, nullptr, {}, mask.numel()};
    int64_t dense_stride = 1;
    for (int d = 3; d >= 0; --d) {
      TORCH_CHECK(mask.size(d) == 1 || mask.size(d) == shape[d], "masks: expected a shape that broadcasts to ",
                  at::IntArrayRef(shape), ", got ", mask.sizes());
      const bool broadcast = mask.size(d) == 1;
      read.stride[d] = broadcast ? 0 : mask.stride(d);
      read.d_stride[d] = broadcast ? 0 : dense_stride;
      dense_stride *= mask.size(d);
    }
    return read;
  }

  void read_lengths(const Tensor& given) {
    TORCH_CHECK(
        given.is_cpu() && given.scalar_type() == at::kLong && given.dim() == 1 && given.numel() == attention.batch,
        "lengths: expected ", attention.batch, " int64 on the CPU, one for each row, got ", given.sizes(), " ",
        given.scalar_type(), " on ", given.device());
    lengths = given.contiguous();
    attention.lengths = lengths.const_data_ptr<int64_t>();
    for (int64_t b = 0; b < attention.batch; ++b)
      TORCH_CHECK(attention.lengths[b] >= 0 && attention.lengths[b] <= attention.keys,
                  "lengths: expected 0 <= length <= ", attention.keys, ", the keys, got ", attention.lengths[b],
                  " for row ", b);
  }
};

Dropout read_dropout(double probability, OptionalTensor seed) {
  TORCH_CHECK_VALUE(probability >= 0 && probability <= 1, "dropout: expected a probability, got ", probability);
  if (probability == 0) return {0, 0, 1};
  TORCH_CHECK(seed.has_value() && seed->numel() == 1 && seed->scalar_type() == at::kLong,
              "seed: expected one int64 for dropout=", probability);
  return {uint32_t(std::ceil(probability * (1 << 24))), uint64_t(seed->item<int64_t>()),
          probability < 1 ? 1 / (1 - probability) : 0};
}

// [output], the weights if `weights` are not "none", and with `train` lse.
std::vector<Tensor> run_forward(Arguments& a, std::string_view weights, bool train) {
  TORCH_CHECK_VALUE(weights == "none" || weights == "heads" || weights == "average",
                    "weights: expected none, heads or average, got ", weights);
  Attention& attention = a.attention;
  attention.average = weights == "average";
  const int64_t B = attention.batch, H = attention.heads, L = attention.queries, S = attention.keys;
  std::vector<Tensor> outputs{fresh({B, H, L, attention.value_width}, a.options)};
  attention.output = Arguments::heads(outputs[0]);
  if (weights != "none") {
    outputs.push_back(attention.average ? fresh({B, L, S}, a.options) : fresh({B, H, L, S}, a.options));
    attention.weights = outputs[1].data_ptr();
  }
  const Tensor lse = train ? empty({B, H, L}, a.options) : Tensor();
  if (train) attention.lse = lse.data_ptr();
  if (a.nothing()) {
    for (Tensor& output : outputs) attention.empty_rows == EmptyRows::nan ? output.fill_(std::nan("")) : output.zero_();
    if (train) lse.fill_(INFINITY);
  }
  if (!a.nothing()) engine().attention_forward(attention);
  for (Tensor& output : outputs) output = in_dtype(output, a.given_dtype);
  if (train) outputs.push_back(lse);
  return outputs;
}

// The gradients of query, key, value, score_weight if there is one, and the masks.
std::vector<Tensor> run_backward(Arguments& a, const c10::List<std::optional<Tensor>>& d_outputs, const Tensor& lse,
                                 const c10::List<bool>& needs, std::string_view weights) {
  Attention& attention = a.attention;
  attention.average = weights == "average";
  const bool additive = a.score_weight.defined();
  std::vector<Tensor> inputs{a.query, a.key};
  if (additive) inputs.push_back(a.score_weight);
  inputs.push_back(a.value);
  inputs.insert(inputs.end(), a.masks.begin(), a.masks.end());
  TORCH_CHECK(needs.size() == inputs.size(), "needs: expected ", inputs.size(), ", got ", needs.size());
  TORCH_CHECK(lse.sizes() == a.query.sizes().slice(0, 3) && lse.scalar_type() == a.dtype,
              "lse: expected the one that the forward gave for the same arguments, got ", lse.sizes());
  const auto d_of = [&](size_t k, at::IntArrayRef shape) {
    const Tensor d = k < d_outputs.size() ? d_outputs.get(k).value_or(Tensor()) : Tensor();
    TORCH_CHECK(!d.defined() || d.numel() == c10::multiply_integers(shape), "d_outputs: expected shape ", shape, " at ",
                k, ", got ", d.sizes());
    return d.defined() ? d.reshape(shape) : d;
  };
  const int64_t B = attention.batch, H = attention.heads, L = attention.queries, S = attention.keys;
  const Tensor d_output = rows_of(d_of(0, {B, H, L, attention.value_width}), a.dtype);
  Tensor d_weights;
  if (weights != "none") d_weights = dense(attention.average ? d_of(1, {B, L, S}) : d_of(1, {B, H, L, S}), a.dtype);
  std::vector<Tensor> gradients;
  for (size_t k = 0; k < inputs.size(); ++k)
    gradients.push_back(!needs.get(k) ? empty({0}, a.options)
                        : a.nothing() ? at::zeros(inputs[k].sizes(), a.options)
                                      : fresh(inputs[k].sizes(), a.options));
  if (!a.nothing()) {
    const Tensor lse_dense = lse.contiguous();
    attention.lse = lse_dense.data_ptr();
    if (d_output.defined()) attention.d_output = Arguments::heads(d_output);
    attention.d_weights = d_weights.defined() ? d_weights.const_data_ptr() : nullptr;
    Heads* const to[] = {&attention.d_query, &attention.d_key, &attention.d_value};
    const size_t place[] = {0, 1, size_t(additive ? 3 : 2)};
    for (int k = 0; k < 3; ++k)
      if (needs.get(place[k])) *to[k] = Arguments::heads(gradients[place[k]]);
    if (additive && needs.get(2)) attention.d_score_weight = gradients[2].data_ptr();
    for (int k = 0; k < attention.masks; ++k)
      if (needs.get(place[2] + 1 + k)) attention.mask[k].d_mask = gradients[place[2] + 1 + k].data_ptr();
    engine().attention_backward(attention);
  }
  for (Tensor& gradient : gradients) gradient = in_dtype(gradient, a.given_dtype);
  return gradients;
}

Arguments read(const Tensor& query, const Tensor& key, const Tensor& value, at::TensorList masks,
               OptionalTensor lengths, OptionalTensor seed, bool causal, double dropout, double scale,
               std::string_view empty_rows) {
  Arguments a(query, key, value, Tensor(), masks.vec(), lengths, empty_rows);
  a.attention.causal = causal;
  a.attention.scale = scale;
  a.attention.dropout = read_dropout(dropout, seed);
  return a;
}

std::vector<Tensor> attention(const Tensor& query, const Tensor& key, const Tensor& value, at::TensorList masks,
                              OptionalTensor lengths, OptionalTensor seed, bool causal, double dropout, double scale,
                              std::string_view weights, std::string_view empty_rows) {
  Arguments a = read(query, key, value, masks, lengths, seed, causal, dropout, scale, empty_rows);
  return run_forward(a, weights, false);
}

std::vector<Tensor> attention_train(const Tensor& query, const Tensor& key, const Tensor& value, at::TensorList masks,
                                    OptionalTensor lengths, OptionalTensor seed, bool causal, double dropout,
                                    double scale, std::string_view weights, std::string_view empty_rows) {
  Arguments a = read(query, key, value, masks, lengths, seed, causal, dropout, scale, empty_rows);
  return run_forward(a, weights, true);
}

std::vector<Tensor> attention_backward(const c10::List<std::optional<Tensor>>& d_outputs, const Tensor&,
                                       const Tensor& lse, c10::List<bool> needs, const Tensor& query, const Tensor& key,
                                       const Tensor& value, at::TensorList masks, OptionalTensor lengths,
                                       OptionalTensor seed, bool causal, double dropout, double scale,
                                       std::string_view weights, std::string_view empty_rows) {
  Arguments a = read(query, key, value, masks, lengths, seed, causal, dropout, scale, empty_rows);
  return run_backward(a, d_outputs, lse, needs, weights);
}

// The additive score with a dimension of one head.
Arguments read_additive(const Tensor& query, const Tensor& key, const Tensor& score_weight, const Tensor& value,
                        at::TensorList masks, OptionalTensor lengths, std::string_view empty_rows) {
  const Tensor* const tensors[] = {&query, &key, &value};
  const char* const names[] = {"query", "key", "value"};
  for (int k = 0; k < 3; ++k)
    TORCH_CHECK(tensors[k]->dim() == 3, names[k], ": expected 3 dimensions (B, L, E), got ", tensors[k]->dim());
  TORCH_CHECK(score_weight.dim() == 1 && score_weight.size(0) == query.size(2) &&
                  score_weight.scalar_type() == query.scalar_type(),
              "score_weight: expected (", query.size(2), ",) ", query.scalar_type(), " like query, got ",
              score_weight.sizes(), " ", score_weight.scalar_type());
  std::vector<Tensor> heads;
  for (const Tensor& mask : masks) {
    TORCH_CHECK(mask.dim() == 3, "masks: expected 3 dimensions, got ", mask.dim());
    heads.push_back(mask.unsqueeze(1));
  }
  Arguments a(query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1), score_weight, heads, lengths, empty_rows);
  a.attention.scale = 1;
  return a;
}

std::vector<Tensor> without_head(std::vector<Tensor> tensors) {
  for (Tensor& x : tensors)
    if (x.dim() > 2) x = x.squeeze(1);
  return tensors;
}

std::vector<Tensor> additive_attention(const Tensor& query, const Tensor& key, const Tensor& score_weight,
                                       const Tensor& value, at::TensorList masks, OptionalTensor lengths,
                                       std::string_view empty_rows) {
  Arguments a = read_additive(query, key, score_weight, value, masks, lengths, empty_rows);
  return without_head(run_forward(a, "heads", false));
}

std::vector<Tensor> additive_attention_train(const Tensor& query, const Tensor& key, const Tensor& score_weight,
                                             const Tensor& value, at::TensorList masks, OptionalTensor lengths,
                                             std::string_view empty_rows) {
  Arguments a = read_additive(query, key, score_weight, value, masks, lengths, empty_rows);
  return without_head(run_forward(a, "heads", true));
}

std::vector<Tensor> additive_attention_backward(const c10::List<std::optional<Tensor>>& d_outputs, const Tensor&,
                                                const Tensor& lse, c10::List<bool> needs, const Tensor& query,
                                                const Tensor& key, const Tensor& score_weight, const Tensor& value,
                                                at::TensorList masks, OptionalTensor lengths,
                                                std::string_view empty_rows) {
  Arguments a = read_additive(query, key, score_weight, value, masks, lengths, empty_rows);
  return without_head(run_backward(a, d_outputs, lse.unsqueeze(1), needs, "heads"));
}

}  // namespace

TORCH_LIBRARY_IMPL(seq2seq_fast, CPU, m) {
  m.impl("attention", attention);
  m.impl("attention_train", attention_train);
  m.impl("attention_backward", attention_backward);
  m.impl("additive_attention", additive_attention);
  m.impl("additive_attention_train", additive_attention_train);
  m.impl("additive_attention_backward", additive_attention_backward);
}

}  // namespace seq2seq_fast
