// The states of the rows as the loop keeps them, and where each step finds those before it.
#pragma once

#include "simd.h"

namespace {

using seq2seq_fast::Direction;
using seq2seq_fast::Layer;
using seq2seq_fast::padded;
using seq2seq_fast::Range;
using seq2seq_fast::Sequence;

// Rows of slots of padded(H) sums: h (as elements), c where the cell has one, then what backward reads of the gates and,
// last, what is projected to h (as elements) where a projection is.
template <class E>
struct StateRows {
  char* data;
  int64_t hidden;  // padded
  int64_t slots;

  Sum<E>* slot(int64_t index, int s) const { return reinterpret_cast<Sum<E>*>(data) + (index * slots + s) * hidden; }
  E* h(int64_t index) const { return reinterpret_cast<E*>(slot(index, 0)); }
  Sum<E>* c(int64_t index) const { return slot(index, 1); }
  E* unprojected(int64_t index) const { return reinterpret_cast<E*>(slot(index, slots - 1)); }
};

// The order of the steps in one direction. Step s is time t(s); rows that do not run at the step before start there.
struct Steps {
  const Sequence& sequence;
  bool reverse;

  int64_t time(int64_t s) const { return reverse ? sequence.steps - 1 - s : s; }
  int64_t active(int64_t s) const { return sequence.active[time(s)]; }
  int64_t first(int64_t s) const { return sequence.first[time(s)]; }
  // how many of the rows of step s ran at the step before
  int64_t continuing(int64_t s) const {
    if (s == 0) return 0;
    const int64_t before = active(s - 1), now = active(s);
    return before < now ? before : now;
  }
  // rows from here to active(s) have their last step at s
  int64_t staying(int64_t s) const {
    if (s + 1 == sequence.steps) return 0;
    const int64_t after = active(s + 1), now = active(s);
    return after < now ? after : now;
  }
};

// h_0 and c_0 in the order of the sequence, zero where not given.
template <class E>
void read_initial(const Layer& layer, const Direction& direction, const StateRows<E>& initial, bool has_c) {
  const int64_t H = layer.hidden_size, S = layer.state_size;
  for (int64_t i = 0; i < layer.sequence.batch; ++i) {
    __builtin_memset(initial.slot(i, 0), 0, initial.slots * initial.hidden * sizeof(Sum<E>));
    if (direction.h_0) __builtin_memcpy(initial.h(i), (const E*)direction.h_0 + layer.hx_row[i] * S, S * sizeof(E));
    if (has_c && direction.c_0) {
      const E* c_0 = (const E*)direction.c_0 + layer.hx_row[i] * H;
      for (int64_t j = 0; j < H; ++j) initial.c(i)[j] = to_sum(c_0[j]);
    }
  }
}

// Columns of the last states of row i.
template <class E>
void write_final(const Layer& layer, const Direction& direction, int64_t i, const E* h, Range of_h, const Sum<E>* c,
                 Range of_c) {
  E* h_n = (E*)direction.h_n + layer.hx_row[i] * layer.state_size;
  __builtin_memcpy(h_n + of_h.from, h + of_h.from, (of_h.to - of_h.from) * sizeof(E));
  if (!c) return;
  E* c_n = (E*)direction.c_n + layer.hx_row[i] * layer.hidden_size;
  for (int64_t j = of_c.from; j < of_c.to; ++j) c_n[j] = from_sum<E>(c[j]);
}

}  // namespace
