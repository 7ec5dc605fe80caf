// A query's row of scores: masks, softmax and dropout forward, and the gradient of the scores backward.
#pragma once

#include "../attention.h"
#include "../cells/activations.h"
#include "philox.h"

namespace {

using seq2seq_fast::Attention;
using seq2seq_fast::Dropout;
using seq2seq_fast::EmptyRows;
using seq2seq_fast::Mask;

template <class A>
constexpr A minus_infinity = -__builtin_inf();

// e^x for x <= 0, and 0 below the smallest normal number.
template <class V>
inline V exp_negative(V x) {
  using L = typename Vector<V>::L;
  const auto e = exponential(at_least(x, -2 * L::limit));
  return x < -2 * L::limit ? V{} : e.power + e.power * e.remainder;
}

// Lanes below `count` of x, and `other` in the rest.
template <class A>
inline Vec<A> first_lanes(Vec<A> x, int64_t count, A other) {
  if (count >= lanes<A>) return x;
  typedef decltype(Vec<A>{} == Vec<A>{}) Lanes;
  Lanes place;
  for (int lane = 0; lane < lanes<A>; ++lane) place[lane] = lane;
  return place < int(count > 0 ? count : 0) ? x : Vec<A>{} + other;
}

// All lanes taken together, by halves.
template <class A, int half = lanes<A> / 2, class Take>
inline A fold_lanes(Vec<A> x, Take take) {
  const Vec<A> folded = take(x, swap_lanes<A, half>(x));
  if constexpr (half > 1) {
    return fold_lanes<A, half / 2>(folded, take);
  } else {
    return folded[0];
  }
}

template <class A>
inline A sum_lanes(Vec<A> x) {
  return fold_lanes<A>(x, [](Vec<A> a, Vec<A> b) { return a + b; });
}

template <class A>
inline A greatest_lane(Vec<A> x) {
  return fold_lanes<A>(x, [](Vec<A> a, Vec<A> b) { return a > b ? a : b; });
}

// One query's row of a mask.
template <class A>
struct MaskRow {
  typedef uint8_t Bytes __attribute__((vector_size(sizeof(Vec<A>) / sizeof(A))));
  using Lanes = decltype(Vec<A>{} == Vec<A>{});

  const char* data;
  int64_t step;
  bool boolean;

  MaskRow() = default;
  MaskRow(const Mask& mask, int64_t b, int64_t h, int64_t i)
      : data((const char*)mask.data +
             (b * mask.stride[0] + h * mask.stride[1] + i * mask.stride[2]) * (mask.boolean ? 1 : sizeof(A))),
        step(mask.stride[3]),
        boolean(mask.boolean) {}

  // The scores of the keys from j on, of which `count` are there.
  Vec<A> operator()(Vec<A> scores, int64_t j, int64_t count) const {
    constexpr int L = lanes<A>;
    const Vec<A> none = Vec<A>{} + minus_infinity<A>;
    if (boolean) {
      char some[L] = {};
      if (step != 1 || count < L)
        for (int64_t lane = 0; lane < L && lane < count; ++lane) some[lane] = data[(j + lane) * step];
      Bytes takes_part;
      __builtin_memcpy(&takes_part, step == 1 && count >= L ? data + j : some, L);
      return __builtin_convertvector(takes_part, Lanes) != 0 ? scores : none;
    }
    const A* numbers = (const A*)data;
    Vec<A> added{};
    if (step == 1 && count >= L) {
      added = load<A>(numbers + j);
    } else if (step == 0) {
      added = Vec<A>{} + *numbers;
    } else {
      for (int64_t lane = 0; lane < L && lane < count; ++lane) added[lane] = numbers[(j + lane) * step];
    }
    return added == none ? none : scores + added;
  }
};

// Which weights of a row are kept: asked for in rising order of the keys.
template <class A>
struct KeepRow {
  typedef uint32_t Some __attribute__((vector_size(4 * lanes<A>)));
  using Lanes = decltype(Vec<A>{} == Vec<A>{});

  const Dropout& dropout;
  uint32_t row, head;
  int64_t drawn = -1;
  uint32_t words[4 * lanes<uint32_t>];

  // x where kept, else 0, for the keys from j on; j is a multiple of the lanes.
  Vec<A> operator()(Vec<A> x, int64_t j) {
    constexpr int64_t at_once = 4 * lanes<uint32_t>;
    if (j / at_once != drawn) {
      drawn = j / at_once;
      philox_words(dropout.seed, uint32_t(drawn * lanes<uint32_t>), row, head, words);
    }
    Some word;
    __builtin_memcpy(&word, words + j % at_once, sizeof word);
    return __builtin_convertvector(word >> 8, Lanes) >= int32_t(dropout.threshold) ? x : Vec<A>{};
  }
};

// x / sum, given 1 / sum: the one weight of a query that sees one key is 1 to the bit, and its score's gradient 0.
template <class V, class A>
inline V divide(V x, A sum, A reciprocal) {
#if SF_VECTOR_BYTES >= 32
  const V quotient = x * reciprocal;
  return quotient + (x - quotient * sum) * reciprocal;  // one multiply-add, whose product is not rounded
#else
  return x / sum;
#endif
}

// A row of scores of one query.
template <class A>
struct ScoreRow {
  using V = Vec<A>;
  static constexpr int L = lanes<A>;

  const Attention& attention;
  int64_t b, h, i;
  int64_t count;  // keys that may take part: by length, and with causal by their place
  int64_t end;    // of what is written, a multiple of the lanes: zeros from count on
  MaskRow<A> mask[2];

  ScoreRow(const Attention& attention, int64_t b, int64_t h, int64_t i, int64_t length, int64_t end)
      : attention(attention), b(b), h(h), i(i), count(length), end(end) {
    if (attention.causal && count > i + 1) count = i + 1;
    for (int k = 0; k < attention.masks; ++k) mask[k] = MaskRow<A>(attention.mask[k], b, h, i);
  }

  KeepRow<A> keep() const { return {attention.dropout, uint32_t(i), uint32_t(b * attention.heads + h)}; }

  // The scores from j on: of the products, with scale and masks.
  V scores(const A* products, int64_t j) const {
    V s = load<A>(products + j) * A(attention.scale);
    for (int k = 0; k < attention.masks; ++k) s = mask[k](s, j, count - j);
    return first_lanes<A>(s, count - j, minus_infinity<A>);
  }

  // Whether all scores are -inf: a NaN is a score that takes part.
  bool none_takes_part(const A* row) const {
    return std::all_of(row, row + count, [](A s) { return s == minus_infinity<A>; });
  }

  // Turns products into scores; returns the greatest.
  A finish_scores(A* row) const {
    V most = V{} + minus_infinity<A>;
    for (int64_t j = 0; j < count; j += L) {
      const V s = scores(row, j);
      store<A>(row + j, s);
      most = s > most ? s : most;
    }
    return greatest_lane<A>(most);
  }

  // Turns scores, of which `most` is the greatest, into exponentials, times what dropout leaves; returns the factor that
  // makes them weights, and the logarithm of their sum in lse.
  A exponentials(A* row, A most, A* lse) const {
    if (most == minus_infinity<A> && none_takes_part(row)) {
      if (lse) *lse = __builtin_inf();
      const bool uniform = attention.empty_rows == EmptyRows::uniform;
      for (int64_t j = 0; j < end; j += L) store<A>(row + j, V{} + A(uniform ? 1 : 0));
      if (uniform && attention.dropout.threshold) drop(row);
      return uniform                                  ? A(attention.dropout.scale / attention.keys)
             : attention.empty_rows == EmptyRows::nan ? A(__builtin_nan(""))
                                                      : A(0);
    }
    V sums{};
    int64_t j = 0;
    for (; j < count; j += L) {
      const V e = exp_negative(load<A>(row + j) - most);
      sums += e;
      store<A>(row + j, e);
    }
    for (; j < end; j += L) store<A>(row + j, V{});
    const A sum = sum_lanes<A>(sums);
    if (lse) *lse = most + std::log(sum);
    if (attention.dropout.threshold) drop(row);
    return A(attention.dropout.scale) / sum;
  }

  // Turns products into the weights after dropout, and the gradient of those weights into that of the scores.
  // d_given: the gradient of the weights that were returned, times given_scale; or null.
  void backward(A* row, A* d_row, A lse, const A* d_given, A given_scale) const {
    const A kept = A(attention.dropout.scale);
    const bool dropping = attention.dropout.threshold;
    if (lse == A(__builtin_inf())) {
      const bool uniform = attention.empty_rows == EmptyRows::uniform;
      for (int64_t j = 0; j < end; j += L) {
        store<A>(row + j, V{} + (uniform ? kept / attention.keys : 0));
        store<A>(d_row + j, V{});
      }
      if (uniform && dropping) drop(row);
      return;
    }
    auto keep = this->keep();
    V sums{}, all{};
    int64_t j = 0;
    for (; j < count; j += L) {
      V p = exp_negative(scores(row, j) - lse), d_p = load<A>(d_row + j);
      if (d_given) d_p += load_some<A>(d_given + j, count - j) * given_scale;
      d_p = first_lanes<A>(d_p, count - j, A(0));
      if (dropping) d_p = keep(d_p, j) * kept;
      all += p;
      if (dropping) p = keep(p + p, j) - p;  // a weight that is dropped is kept in mind by its sign
      store<A>(row + j, p);
      store<A>(d_row + j, d_p);
    }
    // near 1: what lse lost in rounding
    const A total = sum_lanes<A>(all), whole = 1 / total;
    for (int64_t k = 0; k < j; k += L) {
      const V p = divide(load<A>(row + k), total, whole);
      sums += (p < 0 ? -p : p) * load<A>(d_row + k);
      store<A>(row + k, p);
    }
    const A delta = sum_lanes<A>(sums);
    for (int64_t k = 0; k < j; k += L) {
      const V p = load<A>(row + k), size = p < 0 ? -p : p;
      store<A>(d_row + k, size * (load<A>(d_row + k) - delta));
      store<A>(row + k, p < 0 ? V{} : p * kept);
    }
    for (; j < end; j += L) {
      store<A>(row + j, V{});
      store<A>(d_row + j, V{});
    }
  }

  // Adds the gradient of the scores to those of the masks that want one: `d_mask` of each, or null.
  void add_mask_gradients(const A* d_row, A* const* d_mask) const {
    for (int k = 0; k < attention.masks; ++k) {
      if (!d_mask[k]) continue;
      const int64_t* stride = attention.mask[k].d_stride;
      A* to = d_mask[k] + b * stride[0] + h * stride[1] + i * stride[2];
      if (stride[3] == 0) {
        A sum = 0;
        for (int64_t j = 0; j < count; ++j) sum += d_row[j];
        *to += sum;
      } else {
        for (int64_t j = 0; j < count; ++j) to[j] += d_row[j];
      }
    }
  }

  void drop(A* row) const {
    auto keep = this->keep();
    for (int64_t j = 0; j < end; j += L) store<A>(row + j, keep(load<A>(row + j), j));
  }
};

}  // namespace
