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
  static constexpr int64_t gates_x_size = 96 * 1024;  // sums a thread keeps: half of a second-level cache
  static constexpr int64_t block_size = 512 * 1024;   // bytes of input and state that pass by all panels together

  E *weight_ih, *weight_hh;  // panels; null where the weights are not worth packing, or not met
  A *bias_x, *bias_h;
  StateRows<E> initial, states;
  // by thread
  int64_t chunk_rows, owned_panels;
  int64_t block_rows;  // of one step, whose panels are used up one by one; 0: gates_x has all columns of some steps
  A* gates_x;
  const E** input_rows;
  // by thread, where the weights are not packed
  int64_t columns_each, few_rows;
  E* columns;
  A* gates_h;
  const E** state_rows;

  ForwardMemory(const Layer& layer, const Direction& direction, int team, bool by_rows, Arena& arena) {
    const P panels{layer.hidden_size};
    const int64_t batch = layer.sequence.batch, hidden = padded(layer.hidden_size), n = panels.count();
    const int64_t rows = by_rows ? (batch + team - 1) / team : batch;
    const bool pack = worth_packing<E>(layer, rows);
    weight_ih = pack ? arena.take<E>(n * panels.size(layer.input_size)) : nullptr;
    const bool meets_state = layer.sequence.steps > 1 || direction.h_0;
    weight_hh = pack && meets_state ? arena.take<E>(n * panels.size(layer.hidden_size)) : nullptr;
    bias_x = arena.take<A>(n * P::width);
    bias_h = arena.take<A>(n * P::width);
    const int state_slots = 1 + C::has_c;
    initial = {arena.take<char>(batch * state_slots * hidden * sizeof(A)), hidden, state_slots};
    if (direction.reserve) {
      states = {(char*)direction.reserve, hidden, state_slots + C::saved};
    } else {
      states = {arena.take<char>(2 * batch * state_slots * hidden * sizeof(A)), hidden, state_slots};
    }
    owned_panels = by_rows ? n : (n + team - 1) / team;
    chunk_rows = gates_x_size / (owned_panels * P::width);
    block_rows = 0;
    if (pack && chunk_rows < 2 * rows) {
      const int64_t fit = block_size / ((layer.input_size + layer.hidden_size) * int64_t(sizeof(E)));
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
    gates_h = arena.take<A>(team * few_rows * P::width);
    state_rows = arena.take<const E*>(team * few_rows);
  }
};

template <class E, template <class> class CellOf>
struct Forward {
  using A = Sum<E>;
  using V = Vec<A>;
  using C = CellOf<V>;
  using P = Panels<E, CellOf>;
  static constexpr int L = lanes<A>;

  const Layer& layer;
  const Direction& direction;
  int64_t output_offset;  // of this direction in a row of the output
  const ForwardMemory<E, CellOf>& memory;
  Team team;
  bool by_rows;

  P panels{layer.hidden_size};
  Steps steps{layer.sequence, direction.reverse};
  int64_t row_begin = by_rows ? team.begin(layer.sequence.batch) : 0;
  int64_t row_end = by_rows ? team.end(layer.sequence.batch) : layer.sequence.batch;
  int64_t panel_begin = by_rows ? 0 : team.begin(panels.count());
  int64_t panel_end = by_rows ? panels.count() : team.end(panels.count());
  int64_t columns = (memory.block_rows ? 1 : memory.owned_panels) * P::width;
  A* gates_x = memory.gates_x + team.rank * memory.chunk_rows * columns;
  const E** input_rows = memory.input_rows + team.rank * memory.chunk_rows;
  A* gates_h = memory.gates_h + team.rank * memory.few_rows * P::width;
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
        const int64_t rows = end(s) - row_begin;
        if (memory.block_rows) {
          for (int64_t i = 0; i < rows; i += memory.block_rows)
            block(s, row_begin + i, row_begin + std::min(rows, i + memory.block_rows));
        } else if (rows > 0) {
          step(s, x);
          x += rows * columns;
        }
        for (int64_t i = std::max(row_begin, steps.staying(s)); i < row_begin + rows; ++i)
          finish(memory.states, index(s) + i, i);
        if (!by_rows) team.wait();
      }
    }
    // rows of no steps end as they began
    for (int64_t i = std::max(row_begin, layer.sequence.active[0]); i < row_end; ++i) finish(memory.initial, i, i);
  }

 private:
  // rows [row_begin, end(s)) are this thread's at step s
  int64_t end(int64_t s) const { return std::max(row_begin, std::min(row_end, steps.active(s))); }

  void pack(int64_t from, int64_t to) {
    if (memory.weight_ih)
      panels.pack(memory.weight_ih, (const E*)direction.weight_ih, layer.input_size, layer.input_size, from, to);
    if (memory.weight_hh)
      panels.pack(memory.weight_hh, (const E*)direction.weight_hh, layer.hidden_size, layer.hidden_size, from, to);
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
      const int64_t here = end(s) - row_begin;
      if (rows && rows + here > memory.chunk_rows) break;
      for (int64_t i = row_begin; i < end(s); ++i) input_rows[rows++] = input_of(s, i);
    }
    const bool packed = memory.weight_ih;
    const Unpacked<E> a(input_rows, packed ? 0 : rows, layer.input_size, few_columns);
    for (int64_t p = panel_begin; p < panel_end; ++p) {
      A* out = gates_x + (p - panel_begin) * P::width;
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
    for (int64_t p = panel_begin; p < panel_end; ++p) {
      panels.multiply(p, to - from, input_rows, layer.input_size, memory.weight_ih, memory.bias_x, gates_x, columns);
      cells(s, p, from, to, gates_x);
    }
  }

  void step(int64_t s, const A* x) {
    const int64_t rows_end = end(s), continuing = steps.continuing(s), H = layer.hidden_size;
    const bool unpacked = !memory.weight_hh && (continuing > row_begin || direction.h_0);
    const int64_t before = s == 0 ? 0 : index(s - 1);
    for (int64_t i = row_begin; unpacked && i < rows_end; ++i)
      state_rows[i - row_begin] = i < continuing ? memory.states.h(before + i) : memory.initial.h(i);
    const Unpacked<E> a(state_rows, unpacked ? rows_end - row_begin : 0, H, few_columns);
    for (int64_t p = panel_begin; p < panel_end; ++p) {
      if (unpacked)
        panels.multiply_unpacked(p, a, H, (const E*)direction.weight_hh, H, memory.bias_h, gates_h, P::width);
      cells(s, p, row_begin, rows_end, x + (p - panel_begin) * P::width);
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
        panels.multiply(p, here, h, H, memory.weight_hh, memory.bias_h, own, P::width);
      } else {
        product = gates_h + (i - row_begin) * P::width;
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
          store_some<E>(memory.states.h(now + row) + j, h_j, L);
          if constexpr (C::has_c) store<A>(memory.states.c(now + row) + j, c_j);
          if (training)
            for (int k = 0; k < C::saved; ++k) store<A>(memory.states.slot(now + row, 1 + C::has_c + k) + j, save[k]);
          store_some<E>(out + layer.output.by_row[row] + j, h_j, H - j);
        }
      }
      i += here;
    }
  }

  void finish(const StateRows<E>& rows, int64_t index, int64_t i) {
    const int64_t from = panel_begin * P::units * L;
    const int64_t to = std::min(panel_end * P::units * L, layer.hidden_size);
    write_final<E>(layer, direction, i, rows.h(index), C::has_c ? rows.c(index) : nullptr, from, to);
  }
};

}  // namespace
