// The time loop backward, twin of forward.h: step by step from the last to the first, the cell's gradients and then
// their product with weight_hh. The gradients of all steps are kept, for one product each with the states, with the
// inputs and with weight_ih afterwards: gradients.h.
#pragma once

#include "forward.h"

namespace {

// The memory one direction works in.
template <class E, template <class> class CellOf>
struct BackwardMemory {
  using A = Sum<E>;
  using C = CellOf<Vec<A>>;
  static constexpr int width = max_tile_vectors * lanes<A>;

  E* weight_hh;                 // panels of units, over the padded gates; null where not worth packing, or not met
  StateRows<E> initial, states;
  A *d_h, *d_c;                 // (batch, hidden): what flows to the step before
  E* d_gates;                   // (rows, d_slots, hidden)
  int64_t hidden, panels;       // hidden: H in whole vectors; the states' rows are padded further

  BackwardMemory(const Layer& layer, const Direction& direction, Arena& arena) {
    const int64_t batch = layer.sequence.batch;
    hidden = whole_vectors(layer.hidden_size);
    panels = groups(layer.hidden_size, width);
    const bool meets_state = layer.sequence.steps > 1 || direction.d_h_0;
    weight_hh = !meets_state || reads_weights(layer, layer.hidden_size)
                    ? nullptr
                    : arena.take<E>(panels * width * C::gates * hidden);
    const int state_slots = 1 + C::has_c;
    const int64_t row = padded(layer.hidden_size);
    initial = {arena.take<char>(batch * state_slots * row * sizeof(A)), row, state_slots};
    states = {(char*)direction.reserve, row, state_slots + C::saved};
    d_h = arena.take<A>(batch * hidden);
    d_c = arena.take<A>(C::has_c ? batch * hidden : 0);
    d_gates = arena.take<E>(layer.sequence.rows * row_size());
  }

  // A few rows read the weights as they lie, where whole vectors fill their rows of `columns`.
  static bool reads_weights(const Layer& layer, int64_t columns) {
    return Element<E>::group == 1 && layer.sequence.rows < 24 + (layer.input_size + layer.hidden_size) / 32 &&
           columns % lanes<A> == 0 && layer.hidden_size % lanes<A> == 0;
  }
  static int64_t whole_vectors(int64_t H) { return groups(H, lanes<A>) * lanes<A>; }
  int64_t row_size() const { return padded(C::d_slots * hidden); }
  // The row of weight_hh or weight_ih that is k-th along the padded gates of the state or the input; null for padding.
  static const E* weight_row(const E* weight, int64_t columns, int64_t H, int64_t hidden, int64_t k, bool input) {
    const int64_t g = input ? C::d_input_gate[k / hidden] : k / hidden, j = k % hidden;
    return j < H ? weight + (g * H + j) * columns : nullptr;
  }
};

template <class E, template <class> class CellOf>
struct Backward {
  using A = Sum<E>;
  using V = Vec<A>;
  using C = CellOf<V>;
  using M = BackwardMemory<E, CellOf>;
  static constexpr int L = lanes<A>;

  const Layer& layer;
  const Direction& direction;
  int64_t output_offset;
  const M& memory;
  Team team;
  bool by_rows;

  int64_t H = layer.hidden_size;
  Steps steps{layer.sequence, direction.reverse};
  int64_t row_begin = by_rows ? team.begin(layer.sequence.batch) : 0;
  int64_t row_end = by_rows ? team.end(layer.sequence.batch) : layer.sequence.batch;
  int64_t panel_begin = by_rows ? 0 : team.begin(memory.panels);
  int64_t panel_end = by_rows ? memory.panels : team.end(memory.panels);
  int64_t unit_begin = panel_begin * M::width;
  int64_t unit_end = std::min(panel_end * M::width, memory.hidden);

  void operator()() {
    for (int64_t p = team.begin(memory.panels); memory.weight_hh && p < team.end(memory.panels); ++p) {
      pack_rows<E>(memory.weight_hh + p * M::width * C::gates * memory.hidden, vectors_of(p) * L,
                   std::min<int64_t>(M::width, H - p * M::width), C::gates * memory.hidden, [&](int64_t k) {
                     const E* row = M::weight_row((const E*)direction.weight_hh, H, H, memory.hidden, k, false);
                     return row ? row + p * M::width : nullptr;
                   });
    }
    if (team.rank == 0) read_initial(layer, direction, memory.initial, C::has_c);
    read_last();
    team.wait();
    for (int64_t s = layer.sequence.steps - 1; s >= 0; --s) {
      const int64_t end = std::min(row_end, steps.active(s));
      pointwise(s, end);
      if (!by_rows) team.wait();
      product(s, end);
    }
    if (direction.d_h_0) write_first(memory.d_h, direction.d_h_0);
    if (C::has_c && direction.d_c_0) write_first(memory.d_c, direction.d_c_0);
  }

 private:
  int vectors_of(int64_t p) const { return int(groups(std::min<int64_t>(M::width, H - p * M::width), L)); }

  void read_last() {
    for (int64_t i = row_begin; i < row_end; ++i)
      for (int64_t j = unit_begin; j < unit_end; j += L) {
        const auto read = [&](const void* d) {
          return d ? load_some<E>((const E*)d + layer.hx_row[i] + j, H - j) : V{};
        };
        store<A>(memory.d_h + i * memory.hidden + j, read(direction.d_h_n));
        if constexpr (C::has_c) store<A>(memory.d_c + i * memory.hidden + j, read(direction.d_c_n));
      }
  }

  void write_first(const A* d, void* to) {
    for (int64_t i = row_begin; i < row_end; ++i)
      for (int64_t j = unit_begin; j < std::min(unit_end, H); j += L)
        store_some<E>((E*)to + layer.hx_row[i] + j, load<A>(d + i * memory.hidden + j), H - j);
  }

  void pointwise(int64_t s, int64_t end) {
    const int64_t t = steps.time(s), now = steps.first(s), before = s ? steps.first(s - 1) : 0;
    const int64_t continuing = steps.continuing(s);
    const E* d_output =
        layer.output.data ? (const E*)layer.output.data + layer.output.by_step[t] + output_offset : nullptr;
    for (int64_t i = row_begin; i < end; ++i) {
      const bool first = i >= continuing;
      const StateRows<E>& from = first ? memory.initial : memory.states;
      const int64_t index = first ? i : before + i;
      const E *h = from.h(index), *h_new = memory.states.h(now + i);
      A *d_h = memory.d_h + i * memory.hidden, *d_c = memory.d_c + i * memory.hidden;
      const E* d_out = d_output ? d_output + layer.output.by_row[i] : nullptr;
      E* d_gates = memory.d_gates + (now + i) * memory.row_size();
      for (int64_t j = unit_begin; j < unit_end; j += L) {
        V save[C::saved + 1], d[C::d_slots], c{}, c_new{}, d_c_j{};
        for (int k = 0; k < C::saved; ++k) save[k] = load<A>(memory.states.slot(now + i, 1 + C::has_c + k) + j);
        V d_h_j = load<A>(d_h + j);
        if (d_out) d_h_j += load_some<E>(d_out + j, H - j);
        if constexpr (C::has_c) {
          c = load<A>(from.c(index) + j);
          c_new = load<A>(memory.states.c(now + i) + j);
          d_c_j = load<A>(d_c + j);
        }
        C::backward(save, load_some<E>(h + j, L), c, load_some<E>(h_new + j, L), c_new, d_h_j, d_c_j, d);
        store<A>(d_h + j, d_h_j);
        if constexpr (C::has_c) store<A>(d_c + j, d_c_j);
        for (int k = 0; k < C::d_slots; ++k) store_some<E>(d_gates + k * memory.hidden + j, d[k], L);
      }
    }
  }

  // d_h += d_gates weight_hh
  void product(int64_t s, int64_t end) {
    if (s == 0 && !direction.d_h_0) return;
    const int64_t K = C::gates * memory.hidden, now = steps.first(s);
    for (int64_t p = panel_begin; p < panel_end; ++p) {
      const int vectors = vectors_of(p);
      const E* weight =
          memory.weight_hh ? memory.weight_hh + p * M::width * K : (const E*)direction.weight_hh + p * M::width;
      const int64_t ld = memory.weight_hh ? vectors * L * Element<E>::group : H;
      for (int64_t i = row_begin; i < end;) {
        const int here = next_part(end - i, max_rows);
        const E* d_gates[max_rows];
        for (int m = 0; m < here; ++m)
          d_gates[m] = memory.d_gates + (now + i + m) * memory.row_size() + C::d_state_slot * memory.hidden;
        multiply<E>(here, vectors, K / Element<E>::group, d_gates, 1, false, weight, ld,
                    memory.d_h + i * memory.hidden + p * M::width, memory.hidden, nullptr, true);
        i += here;
      }
    }
  }
};

}  // namespace
