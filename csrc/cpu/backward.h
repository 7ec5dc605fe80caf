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

  E* weight_hh;  // panels of the state, over the padded gates; null where not worth packing, or not met
  E* weight_hr;  // panels of units, over the padded state; null where not worth packing, or not there
  StateRows<E> initial, states;
  A *d_h, *d_c;  // (batch, state) and (batch, hidden): what flows to the step before
  A* d_units;    // (batch, hidden): what flows to the cells; without a projection d_h
  E* d_gates;    // (rows, d_slots, hidden)
  E* d_state;    // (rows, state): what flows to the projection
  int64_t hidden, state;  // H and S in whole vectors; the states' rows are padded further
  int64_t unit_panels, state_panels;

  BackwardMemory(const Layer& layer, const Direction& direction, Arena& arena) {
    const int64_t batch = layer.sequence.batch;
    const bool projected = C::has_c && direction.weight_hr;
    hidden = whole_vectors(layer.hidden_size);
    state = whole_vectors(layer.state_size);
    unit_panels = groups(layer.hidden_size, width);
    state_panels = groups(layer.state_size, width);
    const bool meets_state = layer.sequence.steps > 1 || direction.d_h_0;
    const bool packs = !reads_weights(layer, layer.state_size);
    weight_hh = meets_state && packs ? arena.take<E>(state_panels * width * C::gates * hidden) : nullptr;
    weight_hr = projected && packs ? arena.take<E>(unit_panels * width * state) : nullptr;
    const int state_slots = 1 + C::has_c;
    const int64_t row = padded(layer.hidden_size);
    initial = {arena.take<char>(batch * state_slots * row * sizeof(A)), row, state_slots};
    states = {(char*)direction.reserve, row, state_slots + C::saved + projected};
    d_h = arena.take<A>(batch * state);
    d_c = arena.take<A>(C::has_c ? batch * hidden : 0);
    d_units = projected ? arena.take<A>(batch * hidden) : d_h;
    d_gates = arena.take<E>(layer.sequence.rows * row_size());
    d_state = arena.take<E>(projected ? layer.sequence.rows * state : 0);
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

  int64_t H = layer.hidden_size, S = layer.state_size;
  bool projected = C::has_c && direction.weight_hr;
  Steps steps{layer.sequence, direction.reverse};
  Range own_rows = by_rows ? team.share(layer.sequence.batch) : Range{0, layer.sequence.batch};
  Range unit_panels = by_rows ? Range{0, memory.unit_panels} : team.share(memory.unit_panels);
  Range state_panels = by_rows ? Range{0, memory.state_panels} : team.share(memory.state_panels);
  Range units{unit_panels.from * M::width, std::min(unit_panels.to * M::width, memory.hidden)};
  Range state{state_panels.from * M::width, std::min(state_panels.to * M::width, memory.state)};

  void operator()() {
    pack();
    if (team.rank == 0) read_initial(layer, direction, memory.initial, C::has_c);
    read_last(memory.d_h, memory.state, state, direction.d_h_n, S);
    if constexpr (C::has_c) read_last(memory.d_c, memory.hidden, units, direction.d_c_n, H);
    team.wait();
    for (int64_t s = layer.sequence.steps - 1; s >= 0; --s) {
      const int64_t end = std::min(own_rows.to, steps.active(s));
      if (projected) {
        add_output(s, end);
        if (!by_rows) team.wait();
        unproject(s, end);
      }
      pointwise(s, end);
      if (!by_rows) team.wait();
      product(s, end);
    }
    if (direction.d_h_0) write_first(memory.d_h, memory.state, state, direction.d_h_0, S);
    if (C::has_c && direction.d_c_0) write_first(memory.d_c, memory.hidden, units, direction.d_c_0, H);
  }

 private:
  // Vectors of panel p of `columns` columns.
  static int vectors_of(int64_t p, int64_t columns) {
    return int(groups(std::min<int64_t>(M::width, columns - p * M::width), L));
  }

  void pack() {
    // panel p of `columns` columns, over K rows
    const auto pack_panel = [](E* panels, int64_t p, int64_t columns, int64_t K, auto row_of) {
      pack_rows<E>(panels + p * M::width * K, vectors_of(p, columns) * L,
                   std::min<int64_t>(M::width, columns - p * M::width), K, [&](int64_t k) {
                     const E* row = row_of(k);
                     return row ? row + p * M::width : nullptr;
                   });
    };
    for (int64_t p = team.begin(memory.state_panels); memory.weight_hh && p < team.end(memory.state_panels); ++p)
      pack_panel(memory.weight_hh, p, S, C::gates * memory.hidden, [&](int64_t k) {
        return M::weight_row((const E*)direction.weight_hh, S, H, memory.hidden, k, false);
      });
    for (int64_t p = team.begin(memory.unit_panels); memory.weight_hr && p < team.end(memory.unit_panels); ++p)
      pack_panel(memory.weight_hr, p, H, memory.state,
                 [&](int64_t k) { return k < S ? (const E*)direction.weight_hr + k * H : nullptr; });
  }

  // These columns of the gradient of a last state, of `size` columns; zeros where there is none.
  void read_last(A* d, int64_t ld, Range columns, const void* d_n, int64_t size) {
    for (int64_t i = own_rows.from; i < own_rows.to; ++i)
      for (int64_t j = columns.from; j < columns.to; j += L)
        store<A>(d + i * ld + j, d_n ? load_some<E>((const E*)d_n + layer.hx_row[i] * size + j, size - j) : V{});
  }

  void write_first(const A* d, int64_t ld, Range columns, void* d_0, int64_t size) {
    for (int64_t i = own_rows.from; i < own_rows.to; ++i)
      for (int64_t j = columns.from; j < std::min(columns.to, size); j += L)
        store_some<E>((E*)d_0 + layer.hx_row[i] * size + j, load<A>(d + i * ld + j), size - j);
  }

  // The gradient of the output at step s; null for zero.
  const E* d_output(int64_t s) const {
    if (!layer.output.data) return nullptr;
    return (const E*)layer.output.data + layer.output.by_step[steps.time(s)] + output_offset;
  }

  // All that flows to the state of step s, which the projection takes: nothing of it stays.
  void add_output(int64_t s, int64_t end) {
    const E* d_out = d_output(s);
    for (int64_t i = own_rows.from; i < end; ++i)
      for (int64_t j = state.from; j < state.to; j += L) {
        A* d_h = memory.d_h + i * memory.state + j;
        V d = load<A>(d_h);
        if (d_out) d += load_some<E>(d_out + layer.output.by_row[i] + j, S - j);
        store_some<E>(memory.d_state + (steps.first(s) + i) * memory.state + j, d, L);
        store<A>(d_h, V{});
      }
  }

  // d_units = d_state weight_hr
  void unproject(int64_t s, int64_t end) {
    multiply_panels(unit_panels, H, memory.weight_hr, (const E*)direction.weight_hr, memory.state, end,
                    memory.d_state + steps.first(s) * memory.state, memory.state, memory.d_units, memory.hidden, false);
  }

  void pointwise(int64_t s, int64_t end) {
    const int64_t now = steps.first(s), before = s ? steps.first(s - 1) : 0;
    const int64_t continuing = steps.continuing(s);
    const E* d_outputs = projected ? nullptr : d_output(s);
    for (int64_t i = own_rows.from; i < end; ++i) {
      const bool first = i >= continuing;
      const StateRows<E>& from = first ? memory.initial : memory.states;
      const int64_t index = first ? i : before + i;
      const E *h = from.h(index), *h_new = memory.states.h(now + i);
      A *d_h = memory.d_units + i * memory.hidden, *d_c = memory.d_c + i * memory.hidden;
      const E* d_out = d_outputs ? d_outputs + layer.output.by_row[i] : nullptr;
      E* d_gates = memory.d_gates + (now + i) * memory.row_size();
      for (int64_t j = units.from; j < units.to; j += L) {
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
    multiply_panels(state_panels, S, memory.weight_hh, (const E*)direction.weight_hh, C::gates * memory.hidden, end,
                    memory.d_gates + steps.first(s) * memory.row_size() + C::d_state_slot * memory.hidden,
                    memory.row_size(), memory.d_h, memory.state, true);
  }

  // Rows [own_rows.from, end) of `to` (+)= rows of `d`, K long, times a weight of `columns` columns, packed or as it lies.
  void multiply_panels(Range panels, int64_t columns, const E* packed, const E* weight, int64_t K, int64_t end,
                       const E* d, int64_t ld_d, A* to, int64_t ld_to, bool add) const {
    for (int64_t p = panels.from; p < panels.to; ++p) {
      const int vectors = vectors_of(p, columns);
      const E* panel = packed ? packed + p * M::width * K : weight + p * M::width;
      const int64_t ld = packed ? vectors * L * Element<E>::group : columns;
      for (int64_t i = own_rows.from; i < end;) {
        const int here = next_part(end - i, max_rows);
        const E* rows[max_rows];
        for (int m = 0; m < here; ++m) rows[m] = d + (i + m) * ld_d;
        multiply<E>(here, vectors, K / Element<E>::group, rows, 1, false, panel, ld, to + i * ld_to + p * M::width,
                    ld_to, nullptr, add);
        i += here;
      }
    }
  }
};

}  // namespace
