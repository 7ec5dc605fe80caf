// A cell's weight in panels, and its products with rows; without panels it is read where it lies.
#pragma once

#include "pack.h"
#include "tile.h"

namespace {

// One gate, no maths: a plain matrix.
template <class V>
struct Plain {
  static constexpr int gates = 1;
};

// Where the units and gates of a cell lie in panels: a panel is `units` vectors of hidden units, each with all its
// gates side by side.
template <class E, template <class> class CellOf>
struct Panels {
  using A = Sum<E>;
  using C = CellOf<Vec<A>>;
  static constexpr int L = lanes<A>;
  static constexpr int units = max_tile_vectors / C::gates;
  static constexpr int vectors = units * C::gates;  // of a whole panel
  static constexpr int width = vectors * L;

  int64_t H;
  int64_t unit_vectors() const { return (H + L - 1) / L; }
  int64_t count() const { return (unit_vectors() + units - 1) / units; }
  int units_in(int64_t p) const { return int(unit_vectors() - p * units < units ? unit_vectors() - p * units : units); }
  int64_t size(int64_t K) const { return groups(K, Element<E>::group) * Element<E>::group * width; }

  void pack(E* panels, const E* weight, int64_t ld, int64_t K, int64_t from, int64_t to) const {
    for (int64_t p = from; p < to; ++p) {
      const int columns = units_in(p) * C::gates * L;
      for (int u = 0; u < units_in(p); ++u)
        for (int g = 0; g < C::gates; ++g) {
          const int64_t j = (p * units + u) * L;
          pack_transposed<E>(
              panels + p * size(K) + (u * C::gates + g) * L * Element<E>::group, columns,
              [&](int n) { return weight + (g * H + j + n) * ld; }, H - j < L ? H - j : L, K);
        }
    }
  }

  // Rows of `out` = rows of `a` times panel p of the packed weight, plus its bias.
  void multiply(int64_t p, int64_t rows, const E* const* a, int64_t K, const E* panels, const A* bias, A* out,
                int64_t ld_out) const {
    constexpr int group = Element<E>::group;
    const int vectors = units_in(p) * C::gates;
    for (int64_t m = 0; m < rows;) {
      const int here = next_part(rows - m, max_rows);
      ::multiply<E>(here, vectors, groups(K, group), a + m, 1, K % group, panels + p * size(K), vectors * L * group,
                    out + m * ld_out, ld_out, bias + p * width, false);
      m += here;
    }
  }

  // The same from the weight itself, whose rows of K elements lie `ld` apart. a: Dotted or Unpacked rows.
  template <class Rows>
  void multiply_unpacked(int64_t p, const Rows& a, int64_t K, const E* weight, int64_t ld, const A* bias, A* out,
                         int64_t ld_out) const {
    for (int v = 0; v < units_in(p) * C::gates; ++v) {
      const int64_t j = (p * units + v / C::gates) * L;
      a.multiply(K, weight + (v % C::gates * H + j) * ld, ld, std::min<int64_t>(H - j, L), out + v * L, ld_out,
                 bias + p * width + v * L);
    }
  }
};

}  // namespace
