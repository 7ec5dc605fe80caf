// The time loop forward: the inputs of a few steps as one product, or where a step has many rows those of a block of
// them, then the product with the state and the cell's maths on what is still in the first-level cache. Its twin is
// backward.h.
#pragma once

#include "panels.h"
#include "states.h"
#include "unpacked.h"

namespace {

using seq2seq_fast::Arena;
using seq2seq_fast::Plan;
using seq2seq_fast::Team;

// What a row costs more in columns than packed.
#ifdef SF_AMX
constexpr double dearer_in_columns = 0.16;  // Sapphire Rapids
#else
constexpr double dearer_in_columns = 0.06;  // Zen 4
#endif

// Whether the weights meet enough rows to be packed. `at_once` rows meet them at a step: those that dots serve cost 40 %
// more than packed, and packing costs as much as 10 rows at H = 64, 16 at 256, 40 at 1024 (Zen 4).
template <class E>
inline bool worth_packing(const Layer& layer, int64_t at_once) {
  const int64_t columns = Unpacked<E>::as_columns(at_once);
  const double dearer = 0.4 * (at_once - columns) + dearer_in_columns * columns;
  return layer.sequence.rows * dearer >= at_once * (8 + (layer.input_size + layer.hidden_size) / 64.0);
}

// The memory one direction works in.
template <class E, template <class> class CellOf>
struct ForwardMemory {
  using A = Sum<E>;
  using C = CellOf<Vec<A>>;
  using P = Panels<E, CellOf>;
  using Projection = Panels<E, Plain>;
  static constexpr int64_t gates_x_size = 96 * 1024;  // sums a thread keeps: half of a second-level cache
  static constexpr int64_t products_width = std::max(P::width, Projection::width);
  static constexpr int64_t block_size = 512 * 1024;   // bytes of input and state that pass by all panels together

  // panels; null where the weights are not worth packing, or not met, or not there
  E *weight_ih, *weight_hh, *weight_hr;
  A *bias_x, *bias_h, *no_bias;
  StateRows<E> initial, states;
  // by thread
  int64_t chunk_rows, owned_panels;
  int64_t block_rows;  // of one step, whose panels are used up one by one; 0: gates_x has all columns of some steps
  A* gates_x;
  const E** input_rows;
  // by thread, where the weights are not packed
  int64_t columns_each, few_rows;
  E* columns;
  A* products;  // with the state or, after the cells, of the projection
  const E** state_rows;

  ForwardMemory(const Layer& layer, const Direction& direction, int team, bool by_rows, Arena& arena) {
    const P panels{layer.hidden_size};
    const Projection projection{direction.weight_hr ? layer.state_size : 0};
    const int64_t batch = layer.sequence.batch, hidden = padded(layer.hidden_size), n = panels.count();
    const int64_t rows = by_rows ? (batch + team - 1) / team : batch;
    const bool pack = worth_packing<E>(layer, rows);
    weight_ih = pack ? arena.take<E>(n * panels.size(layer.input_size)) : nullptr;
    const bool meets_state = layer.sequence.steps > 1 || direction.h_0;
    weight_hh = pack && meets_state ? arena.take<E>(n * panels.size(layer.state_size)) : nullptr;
    weight_hr =
        pack && direction.weight_hr ? arena.take<E>(projection.count() * projection.size(layer.hidden_size)) : nullptr;
    bias_x = arena.take<A>(n * P::width);
    bias_h = arena.take<A>(n * P::width);
    no_bias = arena.take<A>(projection.count() * Projection::width);
    const int state_slots = 1 + C::has_c, projected = direction.weight_hr ? 1 : 0;
    initial = {arena.take<char>(batch * state_slots * hidden * sizeof(A)), hidden, state_slots};
    if (direction.reserve) {
      states = {(char*)direction.reserve, hidden, state_slots + C::saved + projected};
    } else {
      const int slots = state_slots + projected;
      states = {arena.take<char>(2 * batch * slots * hidden * sizeof(A)), hidden, slots};
    }
    owned_panels = by_rows ? n : (n + team - 1) / team;
    chunk_rows = gates_x_size / (owned_panels * P::width);
    block_rows = 0;
    if (pack && chunk_rows < 2 * rows) {
      const int64_t fit = block_size / ((layer.input_size + layer.state_size) * int64_t(sizeof(E)));
      block_rows = chunk_rows = std::min(rows, groups(std::max<int64_t>(fit, 1), max_rows) * max_rows);
    } else if (chunk_rows < rows) {
      chunk_rows = rows;
    }
    if (chunk_rows > layer.sequence.rows) chunk_rows = layer.sequence.rows;
    gates_x = arena.take<A>(team * chunk_rows * (block_rows ? 1 : owned_panels) * P::width);
    input_rows = arena.take<const E*>(team * chunk_rows);
    columns_each =
        pack ? 0 : std::max(columns_size<E>(chunk_rows, layer.input_size), columns_size<E>(rows, layer.hidden_size));
    few_rows = pack ? 0 : rows;
    columns = arena.take<E>(team * columns_each);
    products = arena.take<A>(team * few_rows * products_width);
    state_rows = arena.take<const E*>(team * few_rows);
  }
};

template <class E, template <class> class CellOf>
struct Forward {
  using A = Sum<E>;
  using V = Vec<A>;
  using C = CellOf<V>;
  using P = Panels<E, CellOf>;
  using Projection = Panels<E, Plain>;
  static constexpr int L = lanes<A>;

  const Layer& layer;
  const Direction& direction;
  int64_t output_offset;  // of this direction in a row of the output
  const ForwardMemory<E, CellOf>& memory;
  Team team;
  bool by_rows;

  P panels{layer.hidden_size};
  bool projected = C::has_c && direction.weight_hr;
  Projection projection{projected ? layer.state_size : 0};
  Steps steps{layer.sequence, direction.reverse};
  Range own_rows = by_rows ? team.share(layer.sequence.batch) : Range{0, layer.sequence.batch};
  Range own_panels = by_rows ? Range{0, panels.count()} : team.share(panels.count());
  Range own_projection = by_rows ? Range{0, projection.count()} : team.share(projection.count());
  Range of_c = columns_of<P>(own_panels, layer.hidden_size);
  Range of_h = projected ? columns_of<Projection>(own_projection, layer.state_size) : of_c;
  int64_t columns = (memory.block_rows ? 1 : memory.owned_panels) * P::width;
  A* gates_x = memory.gates_x + team.rank * memory.chunk_rows * columns;
  const E** input_rows = memory.input_rows + team.rank * memory.chunk_rows;
  A* products = memory.products + team.rank * memory.few_rows * memory.products_width;
  const E** state_rows = memory.state_rows + team.rank * memory.few_rows;
  E* few_columns = memory.columns + team.rank * memory.columns_each;

  void operator()() {
    pack(team.begin(panels.count()), team.end(panels.count()));
    if (team.rank == 0) read_initial(layer, direction, memory.initial, C::has_c);
    team.wait();
    const int64_t T = layer.sequence.steps;
    for (int64_t s = 0; s < T;) {
      const int64_t chunk = memory.block_rows ? s + 1 : input_chunk(s);
      A* x = gates_x;
      for (; s < chunk; ++s) {
        const int64_t rows = end(s) - own_rows.from;
        if (memory.block_rows) {
          for (int64_t i = 0; i < rows; i += memory.block_rows)
            block(s, own_rows.from + i, own_rows.from + std::min(rows, i + memory.block_rows));
        } else if (rows > 0) {
          step(s, x);
          x += rows * columns;
        }
        if (projected && !by_rows) team.wait();
        if (projected) project(s);
        for (int64_t i = std::max(own_rows.from, steps.staying(s)); i < own_rows.from + rows; ++i)
          finish(memory.states, index(s) + i, i);
        if (!by_rows) team.wait();
      }
    }
    // rows of no steps end as they began
    for (int64_t i = std::max(own_rows.from, layer.sequence.active[0]); i < own_rows.to; ++i)
      finish(memory.initial, i, i);
  }

 private:
  // rows [own_rows.from, end(s)) are this thread's at step s
  int64_t end(int64_t s) const { return std::max(own_rows.from, std::min(own_rows.to, steps.active(s))); }

  template <class Of>
  static Range columns_of(Range of_panels, int64_t all) {
    return {std::min(of_panels.from * Of::units * L, all), std::min(of_panels.to * Of::units * L, all)};
  }

  void pack(int64_t from, int64_t to) {
    if (memory.weight_ih)
      panels.pack(memory.weight_ih, (const E*)direction.weight_ih, layer.input_size, layer.input_size, from, to);
    if (memory.weight_hh)
      panels.pack(memory.weight_hh, (const E*)direction.weight_hh, layer.state_size, layer.state_size, from, to);
    if (memory.weight_hr)
      projection.pack(memory.weight_hr, (const E*)direction.weight_hr, layer.hidden_size, layer.hidden_size,
                      team.begin(projection.count()), team.end(projection.count()));
    if (projected && team.rank == 0) std::fill_n(memory.no_bias, projection.count() * Projection::width, A{});
    const E *ih = (const E*)direction.bias_ih, *hh = (const E*)direction.bias_hh;
    for (int64_t p = from; p < to; ++p)
      for (int u = 0; u < panels.units_in(p); ++u)
        for (int g = 0; g < C::gates; ++g)
          for (int lane = 0; lane < L; ++lane) {
            const int64_t j = (p * P::units + u) * L + lane, column = p * P::width + (u * C::gates + g) * L + lane;
            const int64_t b = g * layer.hidden_size + j;
            const bool there = ih && j < layer.hidden_size, apart = C::splits_bias && g == C::gates - 1;
            memory.bias_x[column] = !there ? 0 : apart ? to_sum(ih[b]) : to_sum(ih[b]) + to_sum(hh[b]);
            memory.bias_h[column] = there && apart ? to_sum(hh[b]) : 0;
          }
  }

  // Where the states of step s begin in memory.states.
  int64_t index(int64_t s) const { return direction.reserve ? steps.first(s) : (s & 1) * layer.sequence.batch; }

  const E* input_of(int64_t s, int64_t row) const {
    return (const E*)layer.input.data + layer.input.by_step[steps.time(s)] + layer.input.by_row[row];
  }

  // Multiplies the inputs of the steps from s on with weight_ih, as many as fit; returns the step after them.
  int64_t input_chunk(int64_t s) {
    int64_t rows = 0;
    for (; s < layer.sequence.steps; ++s) {
      const int64_t here = end(s) - own_rows.from;
      if (rows && rows + here > memory.chunk_rows) break;
      for (int64_t i = own_rows.from; i < end(s); ++i) input_rows[rows++] = input_of(s, i);
    }
    const bool packed = memory.weight_ih;
    const Unpacked<E> a(input_rows, packed ? 0 : rows, layer.input_size, few_columns);
    for (int64_t p = own_panels.from; p < own_panels.to; ++p) {
      A* out = gates_x + (p - own_panels.from) * P::width;
      if (packed) {
        panels.multiply(p, rows, input_rows, layer.input_size, memory.weight_ih, memory.bias_x, out, columns);
      } else {
        panels.multiply_unpacked(p, a, layer.input_size, (const E*)direction.weight_ih, layer.input_size, memory.bias_x,
                                 out, columns);
      }
    }
    return s;
  }

  // Rows [from, to) of step s, whose inputs and states stay in the second-level cache while all panels pass by.
  void block(int64_t s, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; ++i) input_rows[i - from] = input_of(s, i);
    for (int64_t p = own_panels.from; p < own_panels.to; ++p) {
      panels.multiply(p, to - from, input_rows, layer.input_size, memory.weight_ih, memory.bias_x, gates_x, columns);
      cells(s, p, from, to, gates_x);
    }
  }

  void step(int64_t s, const A* x) {
    const int64_t rows_end = end(s), continuing = steps.continuing(s), S = layer.state_size;
    const bool unpacked = !memory.weight_hh && (continuing > own_rows.from || direction.h_0);
    const int64_t before = s == 0 ? 0 : index(s - 1);
    for (int64_t i = own_rows.from; unpacked && i < rows_end; ++i)
      state_rows[i - own_rows.from] = i < continuing ? memory.states.h(before + i) : memory.initial.h(i);
    const Unpacked<E> a(state_rows, unpacked ? rows_end - own_rows.from : 0, S, few_columns);
    for (int64_t p = own_panels.from; p < own_panels.to; ++p) {
      if (unpacked)
        panels.multiply_unpacked(p, a, S, (const E*)direction.weight_hh, S, memory.bias_h, products, P::width);
      cells(s, p, own_rows.from, rows_end, x + (p - own_panels.from) * P::width);
    }
  }

  // The units of panel p at step s for rows [from, to). x: their panel of the input's product, rows `columns` apart.
  void cells(int64_t s, int64_t p, int64_t from, int64_t to, const A* x) {
    const int64_t continuing = steps.continuing(s), now = index(s), before = s == 0 ? 0 : index(s - 1);
    const int64_t H = layer.hidden_size;
    const bool training = direction.reserve;
    const int units = panels.units_in(p);
    E* out = (E*)layer.output.data + layer.output.by_step[steps.time(s)] + output_offset;
    for (int64_t i = from; i < to;) {
      const int here = next_part(to - i, max_rows);
      alignas(64) A own[max_rows * P::width];
      const A* product = own;
      const E* h[max_rows];
      for (int m = 0; m < here; ++m)
        h[m] = i + m < continuing ? memory.states.h(before + i + m) : memory.initial.h(i + m);
      if (i >= continuing && !direction.h_0) {
        for (int m = 0; m < here; ++m)
          __builtin_memcpy(own + m * P::width, memory.bias_h + p * P::width, sizeof(A) * P::width);
      } else if (memory.weight_hh) {
        panels.multiply(p, here, h, layer.state_size, memory.weight_hh, memory.bias_h, own, P::width);
      } else {
        product = products + (i - own_rows.from) * P::width;
      }
      for (int m = 0; m < here; ++m) {
        const int64_t row = i + m;
        const A* c_row = nullptr;
        if constexpr (C::has_c) c_row = row < continuing ? memory.states.c(before + row) : memory.initial.c(row);
        const A* x_row = x + (row - from) * columns;
        for (int u = 0; u < units; ++u) {
          const int64_t j = (p * P::units + u) * L;
          V gate_x[C::gates], gate_h[C::gates], save[C::saved + 1];
          for (int g = 0; g < C::gates; ++g) {
            gate_x[g] = load<A>(x_row + (u * C::gates + g) * L);
            gate_h[g] = load<A>(product + m * P::width + (u * C::gates + g) * L);
          }
          V h_j = load_some<E>(h[m] + j, L), c_j{};
          if constexpr (C::has_c) c_j = load<A>(c_row + j);
          C::forward(gate_x, gate_h, h_j, c_j, save);
          store_some<E>((projected ? memory.states.unprojected(now + row) : memory.states.h(now + row)) + j, h_j, L);
          if constexpr (C::has_c) store<A>(memory.states.c(now + row) + j, c_j);
          if (training)
            for (int k = 0; k < C::saved; ++k) store<A>(memory.states.slot(now + row, 1 + C::has_c + k) + j, save[k]);
          if (!projected) store_some<E>(out + layer.output.by_row[row] + j, h_j, H - j);
        }
      }
      i += here;
    }
  }

  // h' = weight_hr (o tanh(c')) at step s, for this thread's columns of h'.
  void project(int64_t s) {
    const int64_t rows_end = end(s), now = index(s), H = layer.hidden_size, S = layer.state_size;
    const bool unpacked = !memory.weight_hr;
    for (int64_t i = own_rows.from; unpacked && i < rows_end; ++i)
      state_rows[i - own_rows.from] = memory.states.unprojected(now + i);
    const Unpacked<E> a(state_rows, unpacked ? rows_end - own_rows.from : 0, H, few_columns);
    E* out = (E*)layer.output.data + layer.output.by_step[steps.time(s)] + output_offset;
    for (int64_t p = own_projection.from; p < own_projection.to; ++p) {
      if (unpacked)
        projection.multiply_unpacked(p, a, H, (const E*)direction.weight_hr, H, memory.no_bias, products,
                                     Projection::width);
      for (int64_t i = own_rows.from; i < rows_end;) {
        const int here = next_part(rows_end - i, max_rows);
        alignas(64) A own[max_rows * Projection::width];
        const A* product = unpacked ? products + (i - own_rows.from) * Projection::width : own;
        if (!unpacked) {
          const E* rows[max_rows];
          for (int m = 0; m < here; ++m) rows[m] = memory.states.unprojected(now + i + m);
          projection.multiply(p, here, rows, H, memory.weight_hr, memory.no_bias, own, Projection::width);
        }
        for (int m = 0; m < here; ++m)
          for (int v = 0; v < projection.units_in(p); ++v) {
            const int64_t j = (p * Projection::units + v) * L;
            const V h_j = load<A>(product + m * Projection::width + v * L);
            store_some<E>(memory.states.h(now + i + m) + j, h_j, L);
            store_some<E>(out + layer.output.by_row[i + m] + j, h_j, S - j);
          }
        i += here;
      }
    }
  }

  void finish(const StateRows<E>& rows, int64_t index, int64_t i) {
    write_final<E>(layer, direction, i, rows.h(index), of_h, C::has_c ? rows.c(index) : nullptr, of_c);
  }
};

}  // namespace
