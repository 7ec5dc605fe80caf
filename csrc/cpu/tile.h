// The micro-kernel: a tile of a matrix product that stays in registers.
//
// c[m][:] (+)= sum_k a(m)[k] * b[k][:] for up to 8 rows and up to 4 vectors of columns. b is a panel (pack.h), or rows of
// a matrix as it lies. On Zen 4 (2 cores, AVX-512) 24 sums hide the four cycles of a multiply-add.
#pragma once

#include "simd.h"

namespace {

constexpr int max_tile_rows = 8;
constexpr int max_tile_vectors = 4;

// As many rows as leave registers for one row of b and one value of a.
constexpr int tile_rows(int vectors) {
#if SF_REGISTERS >= 32
  constexpr int rows[] = {0, 8, 8, 8, 6};
#else
  constexpr int rows[] = {0, 8, 5, 4, 3};
#endif
  return rows[vectors];
}

template <class E>
inline Vec<Sum<E>> multiply_add(typename Element<E>::Group a, Vec<Sum<E>> b, Vec<Sum<E>> c) {
#ifdef SF_BFLOAT16
  if constexpr (Element<E>::group == 2) {
    return (Vec<float>)_mm512_dpbf16_ps((__m512)c, (__m512bh)_mm512_set1_epi32(int(a)), (__m512bh)b);
  } else
#endif
    return a * b + c;
}

// Sums are taken over blocks of this many groups and then added up: the error of a sum in one chain grows with its
// length, and every block's share would round at the size of the whole.
constexpr int64_t sum_block = 128;

// K: groups along the sum. a: row pointers, read at steps of `stride` groups. odd: the last group of a holds one
// element, and the one after it must not be read. ld_b: elements from one k of b to the next. init: a row to add to
// each, or null.
template <class E, int M, int N, int unroll>
void tile(int64_t K, const E* const* a, int64_t stride, bool odd, const E* b, int64_t ld_b, Sum<E>* c, int64_t ld_c,
          const Sum<E>* init, bool add) {
  using A = Sum<E>;
  using Group = typename Element<E>::Group;
  constexpr int L = lanes<A>;
  constexpr int group = Element<E>::group;
  const char* row[M];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) row[m] = reinterpret_cast<const char*>(a[m]);
  const int64_t step = stride * int64_t(sizeof(Group));
  const int64_t whole = odd ? K - 1 : K;
  int64_t k = 0;
  do {
    Vec<A> sum[unroll][M][N];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n)
#pragma GCC unroll 4
        for (int u = 0; u < unroll; ++u) sum[u][m][n] = Vec<A>{};
    const auto one = [&](Vec<A>(&s)[M][N], int64_t at, int64_t bytes) __attribute__((always_inline)) {
      Vec<A> column[N];
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) __builtin_memcpy(&column[n], b + at * ld_b + n * L * group, sizeof column[n]);
#pragma GCC unroll 8
      for (int m = 0; m < M; ++m) {
        Group value = 0;
        __builtin_memcpy(&value, row[m] + at * step, bytes);
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) s[m][n] = multiply_add<E>(value, column[n], s[m][n]);
      }
    };
    const int64_t end = whole - k < sum_block ? whole : k + sum_block;
    for (; k + unroll <= end; k += unroll) {
#pragma GCC unroll 4
      for (int u = 0; u < unroll; ++u) one(sum[u], k + u, sizeof(Group));
    }
    for (; k < end; ++k) one(sum[0], k, sizeof(Group));
    if (k == whole && odd) one(sum[0], k++, sizeof(E));
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m)
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) {
#pragma GCC unroll 4
        for (int u = 1; u < unroll; ++u) sum[0][m][n] += sum[u][m][n];
        if (add) sum[0][m][n] += load<A>(c + m * ld_c + n * L);
        if (init) sum[0][m][n] += load<A>(init + n * L);
        store<A>(c + m * ld_c + n * L, sum[0][m][n]);
      }
    add = true;
    init = nullptr;
  } while (k < K);
}

template <class E>
using Tile = void (*)(int64_t, const E* const*, int64_t, bool, const E*, int64_t, Sum<E>*, int64_t, const Sum<E>*,
                      bool);

template <class E, int M, int N>
constexpr Tile<E> tile_of() {
  if constexpr (M > tile_rows(N)) {
    return nullptr;
  } else {
    return tile<E, M, N, (M * N <= 3 ? 4 : M * N <= 6 ? 2 : 1)>;
  }
}

template <class E, int N>
struct TileColumn {
  static constexpr Tile<E> of[max_tile_rows + 1] = {nullptr,
                                                    tile_of<E, 1, N>(),
                                                    tile_of<E, 2, N>(),
                                                    tile_of<E, 3, N>(),
                                                    tile_of<E, 4, N>(),
                                                    tile_of<E, 5, N>(),
                                                    tile_of<E, 6, N>(),
                                                    tile_of<E, 7, N>(),
                                                    tile_of<E, 8, N>()};
};

template <class E>
inline Tile<E> tile_for(int rows, int vectors) {
  switch (vectors) {
    case 1: return TileColumn<E, 1>::of[rows];
    case 2: return TileColumn<E, 2>::of[rows];
    case 3: return TileColumn<E, 3>::of[rows];
    default: return TileColumn<E, 4>::of[rows];
  }
}

// How many rows the next tile takes, so that the tiles of `left` rows are about equal.
inline int next_tile(int64_t left, int vectors) {
  const int most = tile_rows(vectors);
  const int64_t tiles = (left + most - 1) / most;
  return int((left + tiles - 1) / tiles);
}

// How many vectors of columns the next tiles take, so that none is left alone.
inline int next_vectors(int64_t left) { return int(left == 4 || left >= 8 ? 4 : left < 3 ? left : 3); }

}  // namespace
