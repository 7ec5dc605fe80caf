// The product of a few rows with a matrix that is not worth packing: each weight is read once, where it lies.
//
// A tile wants panels, and packing costs a weight about as much as sixteen rows do; a decoder's step has one.
#pragma once

#include "simd.h"

namespace {

// Adds up each of L vectors: lane n of the result is the sum of sums[n]. Halves the vectors as transpose does.
template <class A, int half = lanes<A> / 2>
inline Vec<A> add_lanes(Vec<A>* sums) {
#pragma GCC unroll 8
  for (int i = 0; i < half; ++i) {
    const auto [low, high] = exchange<A, half>(sums[i], sums[i + half]);
    sums[i] = low + high;
  }
  if constexpr (half > 1) {
    return add_lanes<A, half / 2>(sums);
  } else {
    return sums[0];
  }
}

template <class E>
inline Vec<Sum<E>> multiply_add_lanes(Vec<Sum<E>> a, Vec<Sum<E>> b, Vec<Sum<E>> c) {
#ifdef SF_BFLOAT16
  if constexpr (Element<E>::group == 2) {
    return (Vec<float>)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
  } else
#endif
    return a * b + c;
}

constexpr int dot_rows = 3;

// out[m][n] = a[m] . w[n] + init[n] for M rows and the `count` rows of w that are there, at most one vector; the others
// give init.
template <class E, int M>
void dots(int64_t K, const E* const* a, const E* w, int64_t w_stride, int64_t count, Sum<E>* out, int64_t ld_out,
          const Sum<E>* init) {
  using A = Sum<E>;
  constexpr int L = lanes<A>;
  constexpr int step = L * Element<E>::group;
  constexpr int at_once = SF_REGISTERS >= 32 && L >= 8 ? 8 : L < 4 ? L : 4;
  Vec<A> sums[M][L];
#pragma GCC unroll 4
  for (int n = 0; n < L; n += at_once) {
    Vec<A> sum[M][at_once];
    const E* row[at_once];
#pragma GCC unroll 8
    for (int i = 0; i < at_once; ++i) {
      row[i] = w + (n + i < count ? n + i : 0) * w_stride;
      for (int m = 0; m < M; ++m) sum[m][i] = Vec<A>{};
    }
    const auto add = [&](int64_t k, int64_t bytes) __attribute__((always_inline)) {
      Vec<A> left[M];
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) {
        left[m] = Vec<A>{};
        __builtin_memcpy(&left[m], a[m] + k, bytes);
      }
#pragma GCC unroll 8
      for (int i = 0; i < at_once; ++i) {
        Vec<A> right{};
        __builtin_memcpy(&right, row[i] + k, bytes);
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) sum[m][i] = multiply_add_lanes<E>(left[m], right, sum[m][i]);
      }
    };
    int64_t k = 0;
    for (; k + step <= K; k += step) add(k, sizeof(Vec<A>));
    if (k < K) add(k, (K - k) * sizeof(E));
#pragma GCC unroll 8
    for (int i = 0; i < at_once; ++i)
      for (int m = 0; m < M; ++m) sums[m][n + i] = sum[m][i];
  }
#pragma GCC unroll 4
  for (int m = 0; m < M; ++m) {
    Vec<A> total = add_lanes<A>(sums[m]);
    for (int64_t n = count; n < L; ++n) total[n] = 0;
    store<A>(out + m * ld_out, total + load<A>(init));
  }
}

// Rows that meet a weight by dots alone.
template <class E>
struct Dotted {
  const E* const* rows;
  int64_t count;

  // out[m][n] = row m . w[n] + init[n] for the first `there` rows of w, at most one vector; the others give init.
  void multiply(int64_t K, const E* w, int64_t ld, int64_t there, Sum<E>* out, int64_t ld_out,
                const Sum<E>* init) const {
    for (int64_t m = 0; m < count; m += dot_rows) {
      const auto few = count - m == 1 ? dots<E, 1> : count - m == 2 ? dots<E, 2> : dots<E, dot_rows>;
      few(K, rows + m, w, ld, there, out + m * ld_out, ld_out, init);
    }
  }
};

}  // namespace
