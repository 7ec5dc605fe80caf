// A matrix product of rows with up to 4 vectors of columns, and its micro-kernel: a tile of up to 8 rows that stays in
// registers.
//
// c[m][:] (+)= sum_k a(m)[k] * b[k][:]. b is a panel (pack.h), or rows of a matrix as it lies. On Zen 4 (2 cores, AVX-512)
// 24 sums hide the four cycles of a multiply-add.
#pragma once

#include "simd.h"
#ifdef SF_AMX
#include "amx.h"
#endif

namespace {

constexpr int max_tile_rows = 8;
constexpr int max_tile_vectors = 4;
// Rows that pass by a block of b one tile after the other, so that it comes from the second-level cache once.
constexpr int max_rows = 32;
constexpr int line = 64;  // bytes of a cache's line

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

// [begin, end): groups along the sum. a: row pointers, read at steps of `stride` groups. odd: the last group of a holds
// one element, and the one after it must not be read. ld_b: elements from one k of b to the next. init: a row to add
// to each, or null. ahead: memory that is needed next, of which a line is fetched at every group.
template <class E, int M, int N, int unroll>
void tile(int64_t begin, int64_t end, const E* const* a, int64_t stride, bool odd, const E* b, int64_t ld_b, Sum<E>* c,
          int64_t ld_c, const Sum<E>* init, bool add, const char* ahead) {
  using A = Sum<E>;
  using Group = typename Element<E>::Group;
  constexpr int L = lanes<A>;
  constexpr int group = Element<E>::group;
  const char* row[M];
#pragma GCC unroll 8
  for (int m = 0; m < M; ++m) row[m] = reinterpret_cast<const char*>(a[m]);
  const int64_t step = stride * int64_t(sizeof(Group));
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
  const int64_t whole = odd ? end - 1 : end;
  int64_t k = begin;
  for (; k + unroll <= whole; k += unroll) {
    __builtin_prefetch(ahead + (k - begin) * line, 0, 2);
#pragma GCC unroll 4
    for (int u = 0; u < unroll; ++u) one(sum[u], k + u, sizeof(Group));
  }
  for (; k < whole; ++k) one(sum[0], k, sizeof(Group));
  if (odd) one(sum[0], k, sizeof(E));
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
}

template <class E>
using Tile = void (*)(int64_t, int64_t, const E* const*, int64_t, bool, const E*, int64_t, Sum<E>*, int64_t,
                      const Sum<E>*, bool, const char*);

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

// The next part of `left` things, so that all parts are about equal and none is more than `most`.
inline int next_part(int64_t left, int most) {
  const int64_t parts = (left + most - 1) / most;
  return int((left + parts - 1) / parts);
}

// How many vectors of columns the next tiles take, so that none is left alone.
inline int next_vectors(int64_t left) { return int(left == 4 || left >= 8 ? 4 : left < 3 ? left : 3); }

// The product of up to max_rows rows; K groups along the sum, the rest as for tile.
template <class E>
void multiply(int64_t rows, int vectors, int64_t K, const E* const* a, int64_t stride, bool odd, const E* b,
              int64_t ld_b, Sum<E>* c, int64_t ld_c, const Sum<E>* init, bool add) {
  const bool panel = ld_b == vectors * lanes<Sum<E>> * Element<E>::group;
  int64_t k = 0;
#ifdef SF_AMX
  if constexpr (Element<E>::group == 2) {
    if (stride == 1 && rows >= amx::least_rows) {
      k = amx::multiply(int(rows), vectors, odd ? K - 1 : K, a, b, ld_b, c, ld_c, init, add);
      if (k && k == K) return;  // with no groups at all, zeros are still to be written
      if (k) add = true, init = nullptr;
    }
  }
#endif
  do {
    const int64_t end = std::min(K, k + sum_block);
    // the next block of the panel, or of the one behind it. Out of the third-level cache of a Sapphire Rapids one core's
    // steps of LSTM(1024, 1024) on 64 rows run at 189 GFLOP/s with it and at 137 without, where its peak is 204
    const char* ahead = (const char*)(panel ? b + end * ld_b : b);
    for (int64_t m = 0; m < rows;) {
      const int here = next_part(rows - m, tile_rows(vectors));
      tile_for<E>(here, vectors)(k, end, a + m, stride, odd && end == K, b, ld_b, c + m * ld_c, ld_c, init, add, ahead);
      if (panel) ahead += (end - k) * line;
      m += here;
    }
    k = end;
    add = true;
    init = nullptr;
  } while (k < K);
}

}  // namespace
