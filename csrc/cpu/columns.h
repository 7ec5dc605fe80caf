// The product of some rows with a matrix that is not worth packing: instead the rows are packed, as columns, and the
// rows of the matrix take their place in the tile.
#pragma once

#include "pack.h"
#include "tile.h"

namespace {

template <class E>
constexpr int64_t whole_groups(int64_t K) {
  return groups(K, Element<E>::group) * Element<E>::group;
}

// The elements that `rows` rows of K take as columns.
template <class E>
constexpr int64_t columns_size(int64_t rows, int64_t K) {
  constexpr int L = lanes<Sum<E>>;
  return groups(rows, L) * L * whole_groups<E>(K);
}

// Rows row(m) of K elements as columns: panels of as many vectors as a tile takes.
template <class E, class RowAt>
void pack_as_columns(E* columns, int64_t rows, int64_t K, RowAt row) {
  constexpr int L = lanes<Sum<E>>;
  const int64_t all = groups(rows, L);
  for (int64_t v = 0; v < all;) {
    const int vectors = next_vectors(all - v);
    E* panel = columns + v * L * whole_groups<E>(K);
    for (int c = 0; c < vectors; ++c) {
      const int64_t m = (v + c) * L;
      pack_transposed<E>(
          panel + c * L * Element<E>::group, vectors * L, [&](int n) { return row(m + n); },
          std::min<int64_t>(L, rows - m), K);
    }
    v += vectors;
  }
}

// out[m][n] = (row m of the columns) . w[n] + init[n] for the `count` rows of w that are there, at most one vector; the
// others give init.
template <class E>
void multiply_columns(int64_t K, const E* columns, int64_t rows, const E* w, int64_t ld, int64_t count, Sum<E>* out,
                      int64_t ld_out, const Sum<E>* init) {
  using A = Sum<E>;
  constexpr int L = lanes<A>;
  constexpr int group = Element<E>::group;
  alignas(64) A sums[L * max_tile_vectors * L];
  const int64_t all = groups(rows, L);
  for (int64_t v = 0; v < all;) {
    const int vectors = next_vectors(all - v);
    const E* row[L];
    for (int n = 0; n < count; ++n) row[n] = w + n * ld;
    multiply<E>(count, vectors, groups(K, group), row, 1, K % group, columns + v * L * whole_groups<E>(K),
                vectors * L * group, sums, vectors * L, nullptr, false);
    for (int c = 0; c < vectors; ++c) {
      Vec<A> block[L];
#pragma GCC unroll 16
      for (int n = 0; n < L; ++n) block[n] = n < count ? load<A>(sums + (n * vectors + c) * L) : Vec<A>{};
      transpose<A>(block);
      const int64_t m = (v + c) * L;
      for (int64_t r = 0; r < L && m + r < rows; ++r) store<A>(out + (m + r) * ld_out, block[r] + load<A>(init));
    }
    v += vectors;
  }
}

}  // namespace
