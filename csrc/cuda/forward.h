// A step forward: the pointwise maths of the cell, and what it keeps. Its twin is backward.h.
#pragma once

#include "elementwise.h"

namespace seq2seq_fast {

template <class E, template <class> class CellOf>
struct Forward {
  using C = CellOf<Number>;
  static constexpr int columns = C::gates;
  static constexpr int slots = 1;  // the product takes h
  static constexpr bool backward = false;

  const Group& group;
  Elementwise own{group};
  const LoopDirection& direction = group.direction;
  Step now, next{group, 0, direction.reverse != 0};
  Number bias[C::gates], x[elements][C::gates], h[elements], c[elements], save[elements][C::saved + 1];

  __device__ static int turns(int steps) { return steps; }

  __device__ E weight(int column, int, int k, int unit) const {
    const int j = group.first_unit + unit;
    return j < own.hidden && k < own.hidden
               ? ((const E*)direction.weight_hh)[int64_t(column * own.hidden + j) * own.hidden + k]
               : E{};
  }

  template <class Exchange>
  __device__ int start(Exchange& exchange) {
    for (int g = 0; g < C::gates; ++g)
      bias[g] = own.inside ? value_at<E>(direction.bias_hh, g * own.hidden + own.column) : 0;
    own.every_row([&](int row, int at, int64_t in_state) {
      own.h[at] = value_at<E>(direction.h_0, in_state);
      if constexpr (C::has_c) own.c[at] = value_at<E>(direction.c_0, in_state);
      for (int state = 0; state < 2; ++state) exchange.write(row, 0, own.column, E::of(own.h[at]), state);
    });
    return group.rows;
  }

  __device__ int advance(int s) {
    now = next;
    next = Step(group, s + 1, direction.reverse);
    return now.active;
  }

  __device__ void load(int first) {
#pragma unroll
    for (int e = 0; e < elements; ++e) {
      const int row = own.row_of(first, e);
      if (!own.computes(e, row, now.active)) continue;
      const E* gates = (const E*)direction.x_gates + now.row(group, row) * direction.x_stride + own.column;
#pragma unroll
      for (int g = 0; g < C::gates; ++g) x[e][g] = gates[g * own.hidden].value();
    }
  }

  template <class Exchange>
  __device__ void compute(int first, const Partials<columns>& partials, Exchange& exchange) {
#pragma unroll
    for (int e = 0; e < elements; ++e) {
      const int row = own.row_of(first, e), at = row * own.units + own.unit;
      if (!own.computes(e, row, now.active)) continue;
      Number hh[C::gates];
#pragma unroll
      for (int g = 0; g < C::gates; ++g) hh[g] = partials.sum(row - first, g, own.unit) + bias[g].value;
      h[e] = own.h[at];
      if constexpr (C::has_c) c[e] = own.c[at];
      C::forward(x[e], hh, h[e], c[e], save[e]);
      own.h[at] = h[e].value;
      if constexpr (C::has_c) own.c[at] = c[e].value;
      exchange.write(row, 0, own.column, E::of(h[e].value), exchange.turn & 1);
    }
  }

  __device__ void store(int first) const {
#pragma unroll
    for (int e = 0; e < elements; ++e) {
      const int row = own.row_of(first, e);
      if (!own.computes(e, row, now.active)) continue;
      const int64_t at = now.row(group, row);
      ((E*)direction.output)[at * direction.output_stride + own.column] = E::of(h[e].value);
      if (!direction.reserve) continue;
      const int width = int(padded(own.hidden));
      float* reserve = direction.reserve + at * (1 + C::has_c + C::saved) * width + own.column;
      reserve[0] = h[e].value;
      if constexpr (C::has_c) reserve[width] = c[e].value;
#pragma unroll
      for (int k = 0; k < C::saved; ++k) reserve[(1 + C::has_c + k) * width] = save[e][k].value;
    }
  }

  __device__ void finish() const {
    own.every_row([&](int, int at, int64_t in_state) {
      ((E*)direction.h_n)[in_state] = E::of(own.h[at]);
      if constexpr (C::has_c) ((E*)direction.c_n)[in_state] = E::of(own.c[at]);
    });
  }
};

}  // namespace seq2seq_fast
