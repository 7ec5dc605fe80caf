// A step taken back: the pointwise maths to d_gates, which the blocks exchange as the state of this way. A step's product
// is that of the step taken back before it, so one more turn closes the loop. Its twin is forward.h.
#pragma once

#include "elementwise.h"

namespace seq2seq_fast {

template <class E, template <class> class CellOf>
struct Backward {
  using C = CellOf<Number>;
  static constexpr int columns = 1;
  static constexpr int slots = C::gates;  // the product takes the gates' gradients
  static constexpr bool backward = true;

  const Group& group;
  Elementwise own{group};
  const LoopDirection& direction = group.direction;
  Step before, now, next{group, 0, direction.reverse == 0};
  Number d_output[elements], d[elements][C::d_slots];
  Number h[elements], c[elements], h_new[elements], c_new[elements], save[elements][C::saved + 1];

  __device__ static int turns(int steps) { return steps + 1; }

  __device__ E weight(int, int slot, int k, int unit) const {
    const int j = group.first_unit + unit;
    return j < own.hidden && k < own.hidden
               ? ((const E*)direction.weight_hh)[int64_t(slot * own.hidden + k) * own.hidden + j]
               : E{};
  }

  template <class Exchange>
  __device__ int start(Exchange&) {
    own.every_row([&](int, int at, int64_t in_state) {
      own.h[at] = value_at<E>(direction.d_h_n, in_state);
      if constexpr (C::has_c) own.c[at] = value_at<E>(direction.d_c_n, in_state);
    });
    return 0;
  }

  // Rows that ran a step ago and run no more still have that step's product to take.
  __device__ int advance(int s) {
    before = now;
    now = next;
    next = Step(group, s + 1, direction.reverse == 0);
    return now.active > before.active ? now.active : before.active;
  }

  __device__ const float* reserve_at(int64_t row) const {
    return direction.reserve + row * (1 + C::has_c + C::saved) * padded(own.hidden) + own.column;
  }

  __device__ void load(int first) {
#pragma unroll
    for (int e = 0; e < elements; ++e) {
      const int row = own.row_of(first, e);
      if (!own.computes(e, row, now.active)) continue;
      const int width = int(padded(own.hidden));
      const int64_t at = now.row(group, row);
      d_output[e] = value_at<E>(direction.d_output, at * direction.output_stride + own.column);
      const float* reserve = reserve_at(at);
      h_new[e] = reserve[0];
      if constexpr (C::has_c) c_new[e] = reserve[width];
#pragma unroll
      for (int k = 0; k < C::saved; ++k) save[e][k] = reserve[(1 + C::has_c + k) * width];
      if (row < next.active) {
        const float* earlier = reserve_at(next.row(group, row));
        h[e] = earlier[0];
        if constexpr (C::has_c) c[e] = earlier[width];
      } else {
        const int64_t in_state = group.state_row(row) * own.hidden + own.column;
        h[e] = value_at<E>(direction.h_0, in_state);
        if constexpr (C::has_c) c[e] = value_at<E>(direction.c_0, in_state);
      }
    }
  }

  template <class Exchange>
  __device__ void compute(int first, const Partials<columns>& partials, Exchange& exchange) {
    const int rows = now.active > before.active ? now.active : before.active;
#pragma unroll
    for (int e = 0; e < elements; ++e) {
      const int row = own.row_of(first, e), at = row * own.units + own.unit;
      if (!own.computes(e, row, rows)) continue;
      Number d_h = own.h[at] + partials.sum(row - first, 0, own.unit), d_c = 0;
      if (row < now.active) {
        d_h = d_h + d_output[e];
        if constexpr (C::has_c) d_c = own.c[at];
        C::backward(save[e], h[e], c[e], h_new[e], c_new[e], d_h, d_c, d[e]);
        if constexpr (C::has_c) own.c[at] = d_c.value;
#pragma unroll
        for (int g = 0; g < C::gates; ++g)
          exchange.write(row, g, own.column, E::of(d[e][C::d_state_slot + g].value), exchange.turn & 1);
      }
      own.h[at] = d_h.value;
    }
  }

  __device__ void store(int first) const {
#pragma unroll
    for (int e = 0; e < elements; ++e) {
      const int row = own.row_of(first, e);
      if (!own.computes(e, row, now.active)) continue;
      E* d_gates = (E*)direction.d_gates + now.row(group, row) * C::d_slots * own.hidden + own.column;
#pragma unroll
      for (int k = 0; k < C::d_slots; ++k) d_gates[k * own.hidden] = E::of(d[e][k].value);
    }
  }

  __device__ void finish() const {
    own.every_row([&](int, int at, int64_t in_state) {
      if (direction.d_h_0) ((E*)direction.d_h_0)[in_state] = E::of(own.h[at]);
      if constexpr (C::has_c)
        if (direction.d_c_0) ((E*)direction.d_c_0)[in_state] = E::of(own.c[at]);
    });
  }
};

}  // namespace seq2seq_fast
