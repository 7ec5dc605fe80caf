// After the backward loop: d_weight_hh, d_weight_ih and d_bias as sums over all steps, and d_input.
#pragma once

#include "backward.h"

namespace {

// What the gradients of weights are summed from: a block of rows at a time, packed.
template <class E>
struct GradientMemory {
  using A = Sum<E>;
  static constexpr int group = Element<E>::group;
  static constexpr int64_t width = 3 * lanes<A>;  // of a panel: with 8 rows, 24 sums
  // bytes of a block's panels: each block is a turn of reading and writing the gradients
  static constexpr int64_t right_size = 4 << 20;
  static constexpr int64_t most_rows = 2048;  // of a block, or `left` leaves the second-level cache

  int64_t block;      // rows
  int64_t left_size;  // elements from a row of left_rows to the next: of cache lines an odd number
  E* right;           // (panels, block, width), of all threads
  // by thread
  E* left;       // (block, max_rows)
  E* left_rows;  // pairs only: `left` with each row's sum along the memory
  const E **rows, **d_rows;

  GradientMemory(const Layer& layer, int threads, Arena& arena) {
    constexpr int64_t whole = lanes<A> * group;
    const int64_t columns = groups(std::max(layer.input_size, layer.hidden_size), width) * width;
    const int64_t fit = std::clamp<int64_t>(right_size / (columns * int64_t(sizeof(E))), 256 * group, most_rows);
    block = groups(std::min(fit, layer.sequence.rows), whole) * whole;
    left_size = block + whole;
    right = arena.take<E>(block * columns);
    left = arena.take<E>(threads * block * max_rows);
    left_rows = arena.take<E>(group == 2 ? threads * left_size * max_rows : 0);
    rows = arena.take<const E*>(threads * block);
    d_rows = arena.take<const E*>(threads * block);
  }
};

template <class E, template <class> class CellOf>
struct Gradients {
  using A = Sum<E>;
  using V = Vec<A>;
  using C = CellOf<V>;
  using M = BackwardMemory<E, CellOf>;
  static constexpr int L = lanes<A>;
  static constexpr int group = Element<E>::group;

  const Layer& layer;
  const Direction& direction;
  const M& memory;
  const GradientMemory<E>& scratch;
  Team team;

  int64_t H = layer.hidden_size, I = layer.input_size;
  Steps steps{layer.sequence, direction.reverse};
  E* left = scratch.left + team.rank * scratch.block * max_rows;
  E* left_rows = scratch.left_rows + team.rank * scratch.left_size * max_rows;
  const E** rows = scratch.rows + team.rank * scratch.block;
  const E** d_rows = scratch.d_rows + team.rank * scratch.block;

  // This thread's share of the gates' rows.
  void weights() {
    const int64_t identity[] = {0, 1, 2, 3};
    int64_t input_gate[4];
    for (int g = 0; g < C::gates; ++g) input_gate[g] = C::d_input_gate[g];
    const E* d_gates_h = memory.d_gates + C::d_state_slot * memory.hidden;
    if (direction.d_weight_hh)
      outer((A*)direction.d_weight_hh, (A*)direction.d_bias_hh, layer.state_size,
            {d_gates_h, memory.row_size(), C::gates, H, identity}, direction.h_0 ? 0 : steps.active(0),
            [&](int64_t s, int64_t i) {
              return i < steps.continuing(s) ? memory.states.h(steps.first(s - 1) + i) : memory.initial.h(i);
            });
    if (direction.d_weight_hr)
      outer((A*)direction.d_weight_hr, nullptr, H, {memory.d_state, memory.state, 1, layer.state_size, identity}, 0,
            [&](int64_t s, int64_t i) { return memory.states.unprojected(steps.first(s) + i); });
    if (direction.d_weight_ih)
      outer((A*)direction.d_weight_ih, (A*)direction.d_bias_ih, I,
            {memory.d_gates, memory.row_size(), C::gates, H, input_gate}, 0, [&](int64_t s, int64_t i) {
              const int64_t t = steps.time(s);
              return (const E*)layer.input.data + layer.input.by_step[t] + layer.input.by_row[i];
            });
  }

 private:
  // For each row of the sequence the gradients of `gates` times `units` products; those of gate g are gate[g]'s.
  struct Products {
    const E* d;
    int64_t row_size, gates, units;
    const int64_t* gate;
  };

  // d_weight[gate g, unit j][:] = sum over rows of d[g][j] * right_row[:], and d_bias likewise. The first `zeros` of
  // right's rows are zero.
  template <class RightRow>
  void outer(A* d_weight, A* d_bias, int64_t columns, const Products& of, int64_t zeros, RightRow right_row) {
    const int64_t unit_tiles = groups(of.units, max_rows), tiles = of.gates * unit_tiles;
    const int64_t width = GradientMemory<E>::width, panels = groups(columns, width);
    bool first = true;
    int64_t s = 0, i = 0;
    while (s < layer.sequence.steps) {
      // a block of rows in the order of the steps, and their gradients' rows
      int64_t K = 0;
      while (s < layer.sequence.steps && K < scratch.block) {
        if (i == steps.active(s)) {
          ++s;
          i = 0;
          continue;
        }
        rows[K] = right_row(s, i);
        d_rows[K++] = of.d + (steps.first(s) + i++) * of.row_size;
      }
      if (!K) break;
      const int64_t skip = std::min(zeros, K) / group * group;
      zeros -= skip;
      team.wait();
      for (int64_t p = team.begin(panels); p < team.end(panels); ++p) {
        const int64_t here = std::min(width, columns - p * width);
        pack_rows<E>(scratch.right + p * width * scratch.block, groups(here, L) * L, here, K - skip,
                     [&](int64_t k) { return rows[skip + k] + p * width; });
      }
      team.wait();
      for (int64_t tile = team.begin(tiles); tile < team.end(tiles); ++tile) {
        const int64_t g = tile / unit_tiles, j = tile % unit_tiles * max_rows;
        const int units = int(std::min<int64_t>(max_rows, of.units - j));
        const int64_t row = of.gate[g] * of.units + j;
        pack_rows<E>(left, max_rows, units, K, [&](int64_t k) { return d_rows[k] + g * memory.hidden + j; });
        if constexpr (group == 2) transpose_left(K);
        if (d_bias) add_rows(d_bias + row, units, K, first);
        for (int64_t p = 0; p < panels; ++p)
          product(d_weight + row * columns + p * width, columns, units, std::min(width, columns - p * width), skip, K,
                  scratch.right + p * width * scratch.block, first);
      }
      first = false;
    }
  }

  void transpose_left(int64_t K) {
    using Pair = typename Element<E>::Group;
    for (int64_t k = 0; k < groups(K, group); k += L)
      for (int m = 0; m < max_rows; m += L) {
        Vec<Pair> block[L];
        for (int i = 0; i < L; ++i) block[i] = load((const Pair*)left + (k + i) * max_rows + m);
        transpose<Pair>(block);
        for (int i = 0; i < L; ++i) store((Pair*)(left_rows + (m + i) * scratch.left_size) + k, block[i]);
      }
  }

  void add_rows(A* to, int units, int64_t K, bool first) {
    constexpr int64_t block = 32;  // as in tile.h
    A sum[max_rows] = {};
    for (int64_t k = 0; k < K; k += block) {
      A part[max_rows] = {};
      for (int64_t j = k; j < std::min(k + block, K); j += group)
        for (int m = 0; m < max_rows; ++m)
          for (int g = 0; g < group; ++g) part[m] += to_sum(left[j * max_rows + m * group + g]);
      for (int m = 0; m < max_rows; ++m) sum[m] += part[m];
    }
    for (int m = 0; m < units; ++m) to[m] = first ? sum[m] : to[m] + sum[m];
  }

  // Rows [skip, K) of the block.
  void product(A* to, int64_t ld, int units, int64_t columns, int64_t skip, int64_t K, const E* right, bool first) {
    const int vectors = int(groups(columns, L));
    const E* units_of[max_rows];
    for (int m = 0; m < units; ++m)
      units_of[m] = group == 2 ? left_rows + m * scratch.left_size + skip : left + skip * max_rows + m;
    const auto sum_up = [&](A* sums, int64_t ld_sums, bool add) {
      multiply<E>(units, vectors, groups(K - skip, group), units_of, group == 2 ? 1 : max_rows, false, right,
                  vectors * L * group, sums, ld_sums, nullptr, add);
    };
    // what is summed in one go needs no place of its own
    if (columns % L == 0 && K - skip <= sum_block) return sum_up(to, ld, !first);
    alignas(64) A sums[max_rows * max_tile_vectors * L];
    sum_up(sums, vectors * L, false);
    for (int m = 0; m < units; ++m)
      for (int n = 0; n < vectors; ++n) {
        A* out = to + m * ld + n * L;
        const V sum = load<A>(sums + (m * vectors + n) * L);
        const int64_t left = columns - n * L;
        store_some<A>(out, first ? sum : sum + load_some<A>(out, left), left);
      }
  }
};

// d_input = d_gates weight_ih, summed over directions, for this thread's share of the rows.
template <class E, template <class> class CellOf>
struct InputGradient {
  using A = Sum<E>;
  using C = CellOf<Vec<A>>;
  using M = BackwardMemory<E, CellOf>;
  static constexpr int L = lanes<A>;

  const Layer& layer;
  const M* const* memory;        // by direction
  E* const* weight_ih;           // by direction: panels of inputs, over the padded gates; null: not worth packing
  Team team;

  static int64_t panels(const Layer& layer) { return groups(layer.input_size, M::width); }
  static int64_t panels_size(const Layer& layer) {
    if (!layer.d_input.data || M::reads_weights(layer, layer.input_size)) return 0;
    return panels(layer) * M::width * C::gates * M::whole_vectors(layer.hidden_size);
  }

  void pack() const {
    if (!weight_ih[0]) return;
    const int64_t I = layer.input_size, hidden = M::whole_vectors(layer.hidden_size);
    for (int d = 0; d < layer.directions; ++d)
      for (int64_t p = team.begin(panels(layer)); p < team.end(panels(layer)); ++p) {
        const int64_t here = std::min<int64_t>(M::width, I - p * M::width);
        pack_rows<E>(weight_ih[d] + p * M::width * C::gates * hidden, groups(here, L) * L, here, C::gates * hidden,
                     [&](int64_t k) {
                       const E* row =
                           M::weight_row((const E*)layer.direction[d].weight_ih, I, layer.hidden_size, hidden, k, true);
                       return row ? row + p * M::width : nullptr;
                     });
      }
  }

  void operator()() const {
    // blocks of rows whose gradients stay in the second-level cache while the panels pass by
    constexpr int64_t block = 64;
    const int64_t end = team.end(layer.sequence.rows);
    int64_t t = 0;
    E* to[block];
    for (int64_t from = team.begin(layer.sequence.rows); from < end; from += block) {
      const int64_t rows = std::min(block, end - from);
      for (int64_t r = 0; r < rows; ++r) {
        while (from + r >= layer.sequence.first[t] + layer.sequence.active[t]) ++t;
        to[r] = (E*)layer.d_input.data + layer.d_input.by_step[t] +
                layer.d_input.by_row[from + r - layer.sequence.first[t]];
      }
      for (int64_t p = 0; p < panels(layer); ++p) product(from, rows, p, to);
    }
  }

 private:
  void product(int64_t from, int64_t rows, int64_t p, E* const* to) const {
    const int64_t K = C::gates * M::whole_vectors(layer.hidden_size), here = layer.input_size - p * M::width;
    const int vectors = int(groups(std::min<int64_t>(M::width, here), L));
    alignas(64) A sums[max_rows * M::width];
    for (int64_t m = 0; m < rows;) {
      const int turn = next_part(rows - m, max_rows);
      for (int d = 0; d < layer.directions; ++d) {
        const E* d_gates[max_rows];
        for (int r = 0; r < turn; ++r) d_gates[r] = memory[d]->d_gates + (from + m + r) * memory[d]->row_size();
        if (weight_ih[d]) {
          multiply<E>(turn, vectors, K / Element<E>::group, d_gates, 1, false, weight_ih[d] + p * M::width * K,
                      vectors * L * Element<E>::group, sums, M::width, nullptr, d > 0);
          continue;
        }
        for (int g = 0; g < C::gates; ++g) {
          const int64_t H = layer.hidden_size, I = layer.input_size;
          const E* weight = (const E*)layer.direction[d].weight_ih + C::d_input_gate[g] * H * I;
          multiply<E>(turn, vectors, H, d_gates, 1, false, weight + p * M::width, I, sums, M::width, nullptr,
                      d + g > 0);
          for (int r = 0; r < turn; ++r) d_gates[r] += H;
        }
      }
      for (int r = 0; r < turn; ++r)
        for (int n = 0; n < vectors; ++n)
          store_some<E>(to[m + r] + p * M::width + n * L, load<A>(sums + r * M::width + n * L), here - n * L);
      m += turn;
    }
  }
};

}  // namespace
