// The product of rows with a weight as it lies: whole vectors of rows as columns, and dots for the few that are left.
#pragma once

#include "columns.h"
#include "dots.h"

namespace {

template <class E>
struct Unpacked {
  using A = Sum<E>;
  static constexpr int L = lanes<A>;
  // a vector that is this full costs as columns what its rows cost as dots (Zen 4)
  static constexpr int most_dotted = L * 3 / 4;

  // How many of `count` rows are packed as columns.
  static int64_t as_columns(int64_t count) { return count % L > most_dotted ? count : count / L * L; }

  int64_t in_columns;
  E* columns;
  Dotted<E> left;

  // columns: memory for columns_size(count, K) elements.
  Unpacked(const E* const* rows, int64_t count, int64_t K, E* columns)
      : in_columns(as_columns(count)), columns(columns), left{rows + in_columns, count - in_columns} {
    pack_as_columns<E>(columns, in_columns, K, [&](int64_t m) { return rows[m]; });
  }

  // As Dotted.
  void multiply(int64_t K, const E* w, int64_t ld, int64_t there, A* out, int64_t ld_out, const A* init) const {
    multiply_columns<E>(K, columns, in_columns, w, ld, there, out, ld_out, init);
    left.multiply(K, w, ld, there, out + in_columns * ld_out, ld_out, init);
  }
};

}  // namespace
