// The additive score, w . tanh(q + k), and its gradients, with tanh computed again: nothing of (L, S, width) is kept.
#pragma once

#include "dots.h"
#include "softmax.h"

namespace {

// out[m][n] = w . tanh(a[m] + b[n]) for n up to `count`, in whole vectors.
template <class A>
void additive_scores(const A* a, int64_t lda, int64_t rows, const A* b, int64_t ldb, const A* w, int64_t count,
                     int64_t K, A* out, int64_t ld_out) {
  constexpr int L = lanes<A>;
  for (int64_t m = 0; m < rows; ++m)
    for (int64_t n = 0; n < count; n += L) {
      Vec<A> sums[L] = {};
      for (int64_t lane = 0; lane < std::min<int64_t>(L, count - n); ++lane)
        for (int64_t k = 0; k < K; k += L)
          sums[lane] += load_some<A>(w + k, K - k) *
                        tanh(load_some<A>(a + m * lda + k, K - k) + load_some<A>(b + (n + lane) * ldb + k, K - k));
      store<A>(out + m * ld_out + n, add_lanes<A>(sums));
    }
}

// Adds what the gradients of one row of scores give to d_a, d_b and d_w; all in whole vectors.
template <class A>
void additive_gradients(const A* a, const A* b, int64_t ldb, const A* w, const A* d_scores, int64_t count, int64_t K,
                        A* d_a, A* d_b, int64_t ld_d_b, A* d_w) {
  constexpr int L = lanes<A>;
  for (int64_t n = 0; n < count; ++n)
    for (int64_t k = 0; k < K; k += L) {
      const Vec<A> t = tanh(load_some<A>(a + k, K - k) + load_some<A>(b + n * ldb + k, K - k));
      const Vec<A> d = d_scores[n] * load_some<A>(w + k, K - k) * (1 - t * t);
      store<A>(d_a + k, load<A>(d_a + k) + d);
      store<A>(d_b + n * ld_d_b + k, load<A>(d_b + n * ld_d_b + k) + d);
      store<A>(d_w + k, load<A>(d_w + k) + d_scores[n] * t);
    }
}

}  // namespace
