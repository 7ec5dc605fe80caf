// A weight that rows meet step after step.
#pragma once

#include "dots.h"
#include "panels.h"

namespace {

using seq2seq_fast::Arena;
using seq2seq_fast::Team;

template <class A, template <class> class CellOf>
struct Weight {
  using P = Panels<A, CellOf>;
  static constexpr int gates = P::C::gates;

  P panels;
  const A* data;  // (gates * H) rows of K elements, `ld` apart
  int64_t ld, K;
  A* packed;  // room for the panels
  A* bias;    // a number for each column of the panels

  Weight(const void* data, int64_t H, int64_t ld, int64_t K, Arena& arena)
      : panels{H},
        data((const A*)data),
        ld(ld),
        K(K),
        packed(arena.take<A>(panels.count() * panels.size(K))),
        bias(arena.take<A>(columns())) {}

  int64_t columns() const { return panels.count() * P::width; }

  void pack(const Team& team) const {
    panels.pack(packed, data, ld, K, team.begin(panels.count()), team.end(panels.count()));
  }

  // of(g, j): the bias of gate g of unit j.
  template <class Of>
  void set_bias(Of of) const {
    for (int64_t v = 0; v < panels.unit_vectors(); ++v)
      for (int g = 0; g < gates; ++g)
        for (int lane = 0; lane < P::L; ++lane) {
          const int64_t j = v * P::L + lane;
          bias[v / P::units * P::width + (v % P::units * gates + g) * P::L + lane] = j < panels.H ? of(g, j) : 0;
        }
  }

  // Panel p of the products: `rows` rows of `out`.
  void multiply(bool from_packed, int64_t p, int64_t rows, const A* const* a, A* out, int64_t ld_out) const {
    if (from_packed) {
      panels.multiply(p, rows, a, K, packed, bias, out, ld_out);
    } else {
      panels.multiply_unpacked(p, Dotted<A>{a, rows}, K, data, ld, bias, out, ld_out);
    }
  }
};

}  // namespace
