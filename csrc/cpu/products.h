// The products of attention, on the tiles: with the keys transposed, with rows as they lie, and from the left transposed.
#pragma once

#include "dots.h"
#include "pack.h"
#include "tile.h"

namespace {

constexpr int panel_vectors = 3;  // of a panel of keys: with 8 rows, 24 sums
constexpr int64_t max_rows_of_factors = 64;

template <class A>
constexpr int64_t panel_width = panel_vectors * lanes<A>;

template <class A>
inline int64_t padded_columns(int64_t n) {
  return groups(n, panel_width<A>) * panel_width<A>;
}

// Panels of `count` rows of K elements, as the columns of a matrix.
template <class A>
void pack_columns(A* panels, const A* rows, int64_t row_stride, int64_t count, int64_t K) {
  constexpr int L = lanes<A>;
  for (int64_t p = 0; p * panel_width<A> < count; ++p)
    for (int v = 0; v < panel_vectors && p * panel_width<A> + v * L < count; ++v) {
      const int64_t j = p * panel_width<A> + v * L, here = std::min<int64_t>(L, count - j);
      pack_transposed<A>(
          panels + p * panel_width<A> * K + v * L, panel_width<A>, [&](int n) { return rows + (j + n) * row_stride; },
          here, K);
    }
}

// Rows of `count` elements, zeros after them.
template <class A>
void pad_rows(A* to, const A* rows, int64_t row_stride, int64_t count, int64_t width) {
  for (int64_t i = 0; i < count; ++i)
    for (int64_t v = 0; v < padded_columns<A>(width); v += lanes<A>)
      store<A>(to + i * padded_columns<A>(width) + v,
               v < width ? load_some<A>(rows + i * row_stride + v, width - v) : Vec<A>{});
}

// out[m][n] = a[m] . b[n] for n up to `count`, in whole vectors; from b's panels, or where those are null b itself.
template <class A>
void multiply_transposed(const A* a, int64_t lda, int64_t rows, const A* b, int64_t ldb, const A* panels, int64_t count,
                         int64_t K, A* out, int64_t ld_out) {
  constexpr int L = lanes<A>;
  const A* row[max_rows];
  if (!panels) {
    alignas(64) const A zeros[L] = {};
    for (int64_t n = 0; n < count; n += L)
      for (int64_t m = 0; m < rows; m += dot_rows) {
        const auto few = rows - m == 1 ? dots<A, 1> : rows - m == 2 ? dots<A, 2> : dots<A, dot_rows>;
        for (int r = 0; r < dot_rows; ++r) row[r] = a + std::min(m + r, rows - 1) * lda;
        few(K, row, b + n * ldb, ldb, std::min<int64_t>(L, count - n), out + m * ld_out + n, ld_out, zeros);
      }
    return;
  }
  for (int64_t p = 0; p * panel_width<A> < count; ++p) {
    const int vectors = int(groups(std::min(panel_width<A>, count - p * panel_width<A>), L));
    for (int64_t m = 0; m < rows;) {
      const int here = next_part(rows - m, max_rows);
      for (int r = 0; r < here; ++r) row[r] = a + (m + r) * lda;
      multiply<A>(here, vectors, K, row, 1, false, panels + p * panel_width<A> * K, panel_width<A>,
                  out + m * ld_out + p * panel_width<A>, ld_out, nullptr, false);
      m += here;
    }
  }
}

// out (+)= a b: rows of a times K rows of b, each `width` long and readable in whole vectors.
template <class A>
void multiply_rows(const A* a, int64_t lda, int64_t rows, int64_t K, const A* b, int64_t ldb, int64_t width, A* out,
                   int64_t ld_out, bool add) {
  constexpr int L = lanes<A>;
  const int64_t vectors = groups(width, L);
  for (int64_t v = 0; v < vectors;) {
    const int columns = next_vectors(vectors - v);
    for (int64_t m = 0; m < rows;) {
      const int here = next_part(rows - m, max_rows);
      const A* row[max_rows];
      for (int r = 0; r < here; ++r) row[r] = a + (m + r) * lda;
      multiply<A>(here, columns, K, row, 1, false, b + v * L, ldb, out + m * ld_out + v * L, ld_out, nullptr, add);
      m += here;
    }
    v += columns;
  }
}

// out += a^T b: `columns` columns of a, each K long and lda apart, times K rows of b.
template <class A>
void add_transposed(const A* a, int64_t lda, int64_t columns, int64_t K, const A* b, int64_t ldb, int64_t width, A* out,
                    int64_t ld_out) {
  constexpr int L = lanes<A>;
  const int64_t vectors = groups(width, L);
  for (int64_t v = 0; v < vectors;) {
    const int across = next_vectors(vectors - v);
    for (int64_t m = 0; m < columns;) {
      const int here = next_part(columns - m, max_rows);
      const A* column[max_rows];
      for (int r = 0; r < here; ++r) column[r] = a + m + r;
      multiply<A>(here, across, K, column, lda, false, b + v * L, ldb, out + m * ld_out + v * L, ld_out, nullptr, true);
      m += here;
    }
    v += across;
  }
}

}  // namespace
