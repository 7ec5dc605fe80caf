// Panels: the columns of a matrix in the order in which tiles read them.
//
// A panel holds `width` columns: for each group along the sum, width times that group. Missing columns are zero.
#pragma once

#include "simd.h"

namespace {

// Transposes a square block in place: each half of the lanes changes place with the same half of the rows.
template <class G, int half = lanes<G> / 2>
inline void transpose(Vec<G>* rows) {
  constexpr int L = lanes<G>;
#pragma GCC unroll 16
  for (int i = 0; i < L; ++i) {
    if (i & half) continue;
    const auto [low, high] = exchange<G, half>(rows[i], rows[i + half]);
    rows[i] = low;
    rows[i + half] = high;
  }
  if constexpr (half > 1) transpose<G, half / 2>(rows);
}

// One vector of columns of a panel: column n is row(n), of K elements, for the `count` rows that are there.
template <class E, class RowAt>
void pack_transposed(E* panel, int64_t width, RowAt row, int64_t count, int64_t K) {
  using G = std::conditional_t<Element<E>::group == 2, uint32_t, E>;
  constexpr int L = lanes<G>;
  constexpr int group = Element<E>::group;
  for (int64_t k = 0; k < K; k += L * group) {
    const int64_t here = K - k < L * group ? K - k : L * group;
    Vec<G> block[L];
    if (here == L * group && count == L) {
#pragma GCC unroll 16
      for (int n = 0; n < L; ++n) __builtin_memcpy(&block[n], row(n) + k, sizeof block[n]);
    } else {
      for (int n = 0; n < L; ++n) {
        block[n] = Vec<G>{};
        if (n < count) __builtin_memcpy(&block[n], row(n) + k, here * sizeof(E));
      }
    }
    transpose<G>(block);
    const int64_t stored = groups(here, group);
    E* to = panel + (k / group) * width * group;
    if (stored == L) {
#pragma GCC unroll 16
      for (int n = 0; n < L; ++n) __builtin_memcpy(to + n * width * group, &block[n], sizeof block[n]);
    } else {
      for (int n = 0; n < stored; ++n) __builtin_memcpy(to + n * width * group, &block[n], sizeof block[n]);
    }
  }
}

// A panel of `width` columns from rows that follow the sum: row(k) points at the first column, or is null for zeros;
// `count` columns are there.
template <class E, class RowAt>
inline void pack_rows(E* panel, int64_t width, int64_t count, int64_t K, RowAt row) {
  constexpr int group = Element<E>::group;
  constexpr int64_t piece = 8;  // a copy of known size is a few instructions, any other a call
  for (int64_t k = 0; k < K; k += group) {
    E* to = panel + k * width;
    const E* from[group];
    for (int g = 0; g < group; ++g) from[g] = k + g < K ? row(k + g) : nullptr;
    int64_t n = 0;
    if constexpr (group == 1) {
      for (; from[0] && n + piece <= count; n += piece) __builtin_memcpy(to + n, from[0] + n, piece * sizeof(E));
    }
#ifdef SF_BFLOAT16
    else {
      for (; from[0] && from[1] && n + piece <= count; n += piece) {
        const __m128i a = _mm_loadu_si128((const __m128i*)(from[0] + n)),
                      b = _mm_loadu_si128((const __m128i*)(from[1] + n));
        _mm_storeu_si128((__m128i*)(to + n * group), _mm_unpacklo_epi16(a, b));
        _mm_storeu_si128((__m128i*)(to + (n + piece / 2) * group), _mm_unpackhi_epi16(a, b));
      }
    }
#endif
    for (; n < width; ++n)
      for (int g = 0; g < group; ++g) to[n * group + g] = from[g] && n < count ? from[g][n] : E{};
  }
}

}  // namespace
