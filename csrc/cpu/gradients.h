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
  E* left;         // (block, max_rows)
  E* left_rows;    // pairs only: `left` with each row's sum along the memory
  const E** rows;  // (block)

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

  // This thread's share of the gates' rows.
  void weights() {
    const int64_t identity[] = {0, 1, 2, 3};
    int64_t input_gate[4];
    for (int g = 0; g < C::gates; ++g) input_gate[g] = C::d_input_gate[g];
    const Range all{0, layer.sequence.rows};
    // without h_0 the first step's states are zero
    const Range after_first = direction.h_0       ? all
                              : direction.reverse ? Range{0, steps.first(0)}
                                                  : Range{steps.active(0), all.to};
    const E* d_gates_h = memory.d_gates + C::d_state_slot * memory.hidden;
    if (direction.d_weight_hh)
      outer((A*)direction.d_weight_hh, (A*)direction.d_bias_hh, layer.state_size,
            {d_gates_h, memory.row_size(), C::gates, H, identity}, after_first, [&](int64_t s) {
              const int64_t continuing = steps.continuing(s), before = s ? steps.first(s - 1) : 0;
              return
                  [=, this](int64_t i) { return i < continuing ? memory.states.h(before + i) : memory.initial.h(i); };
            });
    if (direction.d_weight_hr)
      outer((A*)direction.d_weight_hr, nullptr, H, {memory.d_state, memory.state, 1, layer.state_size, identity}, all,
            [&](int64_t s) {
              return [=, this, first = steps.first(s)](int64_t i) { return memory.states.unprojected(first + i); };
            });
    if (direction.d_weight_ih)
      outer((A*)direction.d_weight_ih, C::splits_bias ? (A*)direction.d_bias_ih : nullptr, I,
            {memory.d_gates, memory.row_size(), C::gates, H, input_gate}, all, [&](int64_t s) {
              const E* input = (const E*)layer.input.data + layer.input.by_step[steps.time(s)];
              return [=, by_row = layer.input.by_row](int64_t i) { return input + by_row[i]; };
            });
    if (!C::splits_bias && direction.d_bias_ih) {
      team.wait();
      if (team.rank == 0) std::copy_n((const A*)direction.d_bias_hh, C::gates * H, (A*)direction.d_bias_ih);
    }
  }

 private:
  // For each row of the sequence the gradients of `gates` times `units` products; those of gate g are gate[g]'s.
  struct Products {
    const E* d;
    int64_t row_size, gates, units;
    const int64_t* gate;
  };

  // d_weight[gate g, unit j][:] = sum over the rows `from` to `to` of d[g][j] * right_rows(s)(i)[:], row i of step s; and
  // d_bias the sum of d[g][j] over all.
  template <class RightRows>
  void outer(A* d_weight, A* d_bias, int64_t columns, const Products& of, Range range, RightRows right_rows) {
    const int64_t height = height_of(of), unit_tiles = groups(of.units, height), tiles = of.gates * unit_tiles;
    const int64_t width = GradientMemory<E>::width, panels = groups(columns, width);
    // A few panels read the gradients as they lie: those of LSTM(128, 128) after 50 steps of 32 rows take 3.6 ms and with
    // copies 4.3 (2 cores of Zen 4). Rows that lie a page apart are packed.
    const bool packs = group == 2 || panels > 4 || of.row_size * int64_t(sizeof(E)) > 4096;
    int64_t t = 0;
    for (int64_t from = 0; from < layer.sequence.rows; from += scratch.block) {
      const int64_t K = std::min(scratch.block, layer.sequence.rows - from);
      const int64_t skip = std::clamp<int64_t>(range.from - from, 0, K) / group * group;
      const int64_t end = std::clamp<int64_t>(range.to - from, skip, K);
      const Range mine{skip + team.begin(groups(end - skip, group)) * group,
                       std::min(end, skip + team.end(groups(end - skip, group)) * group)};
      find_rows(from, mine, right_rows, t);
      team.wait();
      for (int64_t p = 0; p < panels; ++p) {
        const int64_t here = std::min(width, columns - p * width), whole = groups(here, L) * L;
        pack_rows<E>(scratch.right + p * width * scratch.block + (mine.from - skip) * whole, whole, here,
                     mine.to - mine.from, [&](int64_t k) { return rows[k] + p * width; });
      }
      team.wait();
      for (int64_t tile = team.begin(tiles); tile < team.end(tiles); ++tile) {
        const int64_t g = tile / unit_tiles, j = tile % unit_tiles * height;
        const int units = int(std::min<int64_t>(height, of.units - j));
        const int64_t row = of.gate[g] * of.units + j;
        const E* d = of.d + from * of.row_size + g * memory.hidden + j;
        if (d_bias) add_rows(d_bias + row, units, d, of.row_size, K, from == 0);
        if (packs) {
          pack_rows<E>(left, height, units, K, [&](int64_t k) { return d + k * of.row_size; });
          if constexpr (group == 2) transpose_left(K, height);
        }
        const E* units_of[max_rows];
        for (int m = 0; m < units; ++m)
          units_of[m] = group == 2 ? left_rows + m * scratch.left_size + skip
                        : packs    ? left + skip * height + m
                                   : d + skip * of.row_size + m;
        const int64_t stride = group == 2 ? 1 : packs ? height : of.row_size;
        for (int64_t p = 0; p < panels; ++p)
          product(d_weight + row * columns + p * width, columns, units, std::min(width, columns - p * width), units_of,
                  stride, end - skip, scratch.right + p * width * scratch.block, from == 0);
      }
    }
  }

  // Units of a tile: fewer where the threads would have unequal shares.
  int64_t height_of(const Products& of) const {
    constexpr int64_t least = group == 2 ? L : max_tile_rows;
    int64_t height = max_rows;
    for (; height > least; height /= 2) {
      const int64_t tiles = of.gates * groups(of.units, height);
      if (tiles % team.size == 0 || tiles > 4 * team.size) break;
    }
    return height;
  }

  // rows[0], ...: those of the right that go with rows `mine` of the block at `from`. t: the step of a row before these.
  template <class RightRows>
  void find_rows(int64_t from, Range mine, RightRows right_rows, int64_t& t) {
    const Sequence& sequence = layer.sequence;
    for (int64_t k = mine.from; k < mine.to; ++t) {
      const int64_t end = std::min(mine.to, sequence.first[t] + sequence.active[t] - from);
      if (end <= k) continue;
      const auto right_row = right_rows(steps.time(t));
      for (const int64_t first = sequence.first[t] - from; k < end; ++k) rows[k - mine.from] = right_row(k - first);
      if (k == mine.to) break;
    }
  }

  void transpose_left(int64_t K, int64_t height) {
    using Pair = typename Element<E>::Group;
    for (int64_t k = 0; k < groups(K, group); k += L)
      for (int64_t m = 0; m < height; m += L) {
        Vec<Pair> block[L];
        for (int i = 0; i < L; ++i) block[i] = load((const Pair*)left + (k + i) * height + m);
        transpose<Pair>(block);
        for (int i = 0; i < L; ++i) store((Pair*)(left_rows + (m + i) * scratch.left_size) + k, block[i]);
      }
  }

  // to (+)= the sums over K rows of d, whose units are readable in whole vectors.
  void add_rows(A* to, int units, const E* d, int64_t row_size, int64_t K, bool first) {
    constexpr int64_t block = 32;  // as in tile.h
    for (int64_t j = 0; j < units; j += L) {
      V sum{};
      for (int64_t k = 0; k < K; k += block) {
        V part{};
        for (int64_t i = k; i < std::min(k + block, K); ++i) part += load_some<E>(d + i * row_size + j, L);
        sum += part;
      }
      store_some<A>(to + j, first ? sum : sum + load_some<A>(to + j, units - j), units - j);
    }
  }

  // K rows: `left` as a tile takes it, times a panel.
  void product(A* to, int64_t ld, int units, int64_t columns, const E* const* left, int64_t stride, int64_t K,
               const E* right, bool first) {
    const int vectors = int(groups(columns, L));
    const auto sum_up = [&](A* sums, int64_t ld_sums, bool add) {
      multiply<E>(units, vectors, groups(K, group), left, stride, false, right, vectors * L * group, sums, ld_sums,
                  nullptr, add);
    };
    // what is summed in one go needs no place of its own
    if (columns % L == 0 && K <= sum_block) return sum_up(to, ld, !first);
    alignas(64) A sums[max_rows * max_tile_vectors * L];
    sum_up(sums, vectors * L, false);
    for (int m = 0; m < units; ++m)
      for (int n = 0; n < vectors; ++n) {
        A* out = to + m * ld + n * L;
        const V sum = load<A>(sums + (m * vectors + n) * L);
        const int64_t left_over = columns - n * L;
        store_some<A>(out, first ? sum : sum + load_some<A>(out, left_over), left_over);
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
