// The loop of a search: the decoder's layers, attention, the output's product, and the choice, until all rows are done.
#pragma once

#include "attention_forward.h"
#include "decoder_weights.h"
#include "hypotheses.h"

namespace {

// A hypothesis that runs: its row in the group, where its state was a step ago, and its token.
struct Running {
  int64_t row, from, token;
};

// The attention of a row, without the pointers of any.
template <class A, template <class> class CellOf>
Attention attention_of(const DecoderWeights<A, CellOf>& weights) {
  const auto& memory = weights.search.memory;
  Attention attention = {};
  attention.dtype = weights.search.dtype;
  attention.batch = attention.heads = attention.kv_heads = 1;
  attention.queries = weights.search.beams;
  attention.keys = memory.size;
  attention.width = memory.width;
  attention.value_width = groups(memory.value_width, lanes<A>) * lanes<A>;
  attention.key.row = memory.width;
  attention.value.row = weights.values ? padded_columns<A>(memory.value_width) : memory.value_width;
  attention.score_weight = memory.score == Score::additive ? memory.score_weight : nullptr;
  attention.scale = memory.scale;
  attention.dropout.scale = 1;
  attention.empty_rows = memory.empty_rows;
  attention.threads = 1;
  return attention;
}

// What a group of rows works in, and what each of its threads does.
template <class A, template <class> class CellOf>
struct GroupMemory {
  static constexpr int L = lanes<A>;

  int64_t most;  // hypotheses
  int64_t hidden, ld_query, ld_features, ld_logits;
  A *h[2], *c[2];  // (layers, most, hidden): of this step and of the one before
  A *query, *features, *logits;
  A* alphas;  // (T, most, S), or null
  Running* running;  // (most), row by row
  int64_t* begin;  // (rows + 1), where those of each row begin
  int64_t* count;  // of the running
  Hypotheses<A> hypotheses;

  GroupMemory(const DecoderWeights<A, CellOf>& weights, int64_t first_row, int64_t rows, Arena& arena)
      : most(rows * weights.search.beams),
        hidden(seq2seq_fast::padded(weights.search.hidden_size)),
        hypotheses(weights.search, first_row, rows, arena) {
    const Search& search = weights.search;
    ld_query = weights.query.columns();
    ld_features = groups(search.memory.value_width, L) * L + hidden;
    ld_logits = weights.output.columns();
    for (int k = 0; k < 2; ++k) {
      h[k] = arena.take<A>(search.layers * most * hidden);
      c[k] = search.c_0 ? arena.take<A>(search.layers * most * hidden) : nullptr;
    }
    query = arena.take<A>(most * ld_query);
    features = arena.take<A>(weights.attends ? most * ld_features : 0);
    logits = arena.take<A>(most * ld_logits);
    alphas = search.memory.alphas ? arena.take<A>(search.steps * most * search.memory.size) : nullptr;
    running = arena.take<Running>(most);
    begin = arena.take<int64_t>(rows + 1);
    count = arena.take<int64_t>(1);
  }
};

template <class A>
struct ThreadMemory {
  ChoiceScratch<A> choice;
  A* distances;  // (K, S), of the scores that need them
  char* attention;

  template <template <class> class CellOf>
  ThreadMemory(const DecoderWeights<A, CellOf>& weights, Arena& arena) : choice(weights.search, arena) {
    distances = arena.take<A>(weights.attends ? weights.search.beams * weights.search.memory.size : 0);
    Arena counting(nullptr);
    if (weights.attends) AttentionForward<A>(attention_of(weights), {0, 1, nullptr}, counting);
    attention = arena.take<char>(counting.used());
  }
};

template <class A, template <class> class CellOf>
struct SearchLoop {
  using V = Vec<A>;
  using C = CellOf<V>;
  using P = Panels<A, CellOf>;
  static constexpr int L = lanes<A>;

  const DecoderWeights<A, CellOf>& weights;
  const GroupMemory<A, CellOf>& group;
  const ThreadMemory<A>& thread;
  Team team;
  bool packed;

  const Search& search = weights.search;
  const int64_t top = search.layers - 1;
  const int64_t rows = group.hypotheses.rows, first_row = group.hypotheses.first_row;
  Attention attention = attention_of(weights);
  int64_t met = 0;  // hypotheses that the weights met

  void operator()() {
    begin();
    for (int64_t t = 0; t < search.steps && *group.count; ++t) {
      met += *group.count;
      if (!packed && met >= rows_worth_packing(search)) {
        weights.pack(team);
        packed = true;
        team.wait();
      }
      for (int64_t l = 0; l <= top; ++l) {
        layer(t, l);
        team.wait();
      }
      if (chooses(t)) {
        if (weights.attends) attend(t);
        output(t);
        team.wait();
      }
      search.first_vector ? copy_outputs(t) : choose();
    }
    if (search.first_vector) return;
    for (int64_t i = team.begin(rows); i < team.end(rows); ++i)
      group.hypotheses.write(i, [&](int64_t t, int64_t place) { return alphas_at(t, place); });
  }

 private:
  // The states of a layer after step t; after step -1 those that were given.
  A* h(int64_t t, int64_t l) const { return group.h[t & 1] + l * group.most * group.hidden; }
  A* c(int64_t t, int64_t l) const { return group.c[t & 1] + l * group.most * group.hidden; }
  A* alphas_at(int64_t t, int64_t place) const { return group.alphas + (t * group.most + place) * search.memory.size; }

  // Whether any row has a use for the logits of step t.
  bool chooses(int64_t t) const {
    if (!search.forced) return true;
    for (int64_t i = 0; i < rows; ++i)
      if (group.hypotheses.forced(i, t) < 0) return true;
    return false;
  }

  void begin() {
    for (int64_t i = team.begin(rows); i < team.end(rows); ++i) {
      for (int64_t l = 0; l <= top; ++l)
        for (int64_t j = 0; j < group.hidden; j += L) {
          const int64_t from = (l * search.rows + first_row + i) * search.hidden_size + j,
                        left = search.hidden_size - j;
          store<A>(h(-1, l) + i * group.hidden + j, load_some<A>((const A*)search.h_0 + from, left));
          if constexpr (C::has_c)
            store<A>(c(-1, l) + i * group.hidden + j, load_some<A>((const A*)search.c_0 + from, left));
        }
      if (search.first_vector) {
        group.running[i] = {i, i, 0};
        group.begin[i] = i;
        __builtin_memcpy(group.logits + i * group.ld_logits,
                         (const A*)search.first_vector + (first_row + i) * search.output_size,
                         search.output_size * sizeof(A));
      } else {
        group.hypotheses.begin(i);
      }
    }
    team.wait();
    if (team.rank == 0) {
      if (search.first_vector) {
        group.begin[rows] = *group.count = rows;
      } else {
        list_running();
      }
    }
    team.wait();
  }

  void layer(int64_t t, int64_t l) const {
    const auto& [ih, hh] = weights.layers[l];
    const int64_t count = *group.count, panels = hh.panels.count();
    for (int64_t p = team.begin(panels); p < team.end(panels); ++p) {
      const int units = hh.panels.units_in(p);
      for (int64_t i = 0; i < count;) {
        const int here = next_part(count - i, max_rows);
        alignas(64) A gates_x[max_rows * P::width], gates_h[max_rows * P::width];
        const A *input[max_rows], *h_before[max_rows];
        for (int m = 0; m < here; ++m) h_before[m] = h(t - 1, l) + group.running[i + m].from * group.hidden;
        hh.multiply(packed, p, here, h_before, gates_h, P::width);
        if (l == 0 && weights.table) {
          for (int m = 0; m < here; ++m)
            input[m] = weights.table + group.running[i + m].token * ih.columns() + p * P::width;
        } else {
          for (int m = 0; m < here; ++m) input[m] = input_of(t, l, i + m);
          ih.multiply(packed, p, here, input, gates_x, P::width);
          for (int m = 0; m < here; ++m) input[m] = gates_x + m * P::width;
        }
        for (int m = 0; m < here; ++m) {
          const Running& one = group.running[i + m];
          const A* context = l == 0 && weights.context_gates
                                 ? weights.context_gates + (first_row + one.row) * ih.columns() + p * P::width
                                 : nullptr;
          for (int u = 0; u < units; ++u) {
            const int64_t j = (p * P::units + u) * L;
            V x[C::gates], hh_j[C::gates], save[C::saved + 1];
            for (int g = 0; g < C::gates; ++g) {
              x[g] = load<A>(input[m] + (u * C::gates + g) * L);
              if (context) x[g] += load<A>(context + (u * C::gates + g) * L);
              hh_j[g] = load<A>(gates_h + m * P::width + (u * C::gates + g) * L);
            }
            V h_j = load<A>(h_before[m] + j), c_j{};
            if constexpr (C::has_c) c_j = load<A>(c(t - 1, l) + one.from * group.hidden + j);
            C::forward(x, hh_j, h_j, c_j, save);
            store<A>(h(t, l) + (i + m) * group.hidden + j, h_j);
            if constexpr (C::has_c) store<A>(c(t, l) + (i + m) * group.hidden + j, c_j);
          }
        }
        i += here;
      }
    }
  }

  const A* input_of(int64_t t, int64_t l, int64_t place) const {
    if (l) return h(t, l - 1) + place * group.hidden;
    if (search.first_vector) return group.logits + place * group.ld_logits;
    return (const A*)search.embedding + group.running[place].token * search.input_size;
  }

  // Products of all that run with a plain weight, its panels shared by the team.
  template <class RowAt>
  void multiply(const Weight<A, Plain>& weight, RowAt row_at, A* out) const {
    using M = Panels<A, Plain>;
    const int64_t count = *group.count, panels = weight.panels.count();
    for (int64_t p = team.begin(panels); p < team.end(panels); ++p)
      for (int64_t i = 0; i < count;) {
        const int here = next_part(count - i, max_rows);
        const A* row[max_rows];
        for (int m = 0; m < here; ++m) row[m] = row_at(i + m);
        weight.multiply(packed, p, here, row, out + i * weight.columns() + p * M::width, weight.columns());
        i += here;
      }
  }

  // Leaves context vector and state side by side in `features`.
  void attend(int64_t t) {
    const A* state = h(t, top);
    const A* queries = state;
    int64_t ld = group.hidden;
    if (search.memory.weight_query) {
      multiply(weights.query, [&](int64_t place) { return state + place * group.hidden; }, group.query);
      queries = group.query;
      ld = group.ld_query;
      team.wait();
    }
    for (int64_t i = team.begin(rows); i < team.end(rows); ++i) {
      const int64_t first = group.begin[i], count = group.begin[i + 1] - first;
      if (!count) continue;
      attend_row(t, i, queries + first * ld, ld, first, count);
      for (int64_t place = first; place < first + count; ++place)
        __builtin_memcpy(group.features + place * group.ld_features + search.memory.value_width,
                         state + place * group.hidden, search.hidden_size * sizeof(A));
    }
    team.wait();
  }

  void attend_row(int64_t t, int64_t i, const A* query, int64_t ld, int64_t first, int64_t count) {
    const auto& memory = search.memory;
    const int64_t S = memory.size, row = first_row + i;
    const A* keys = (const A*)memory.keys + row * S * memory.width;
    const A* values = weights.values ? weights.values : (const A*)memory.values;
    attention.queries = count;
    attention.query = {const_cast<A*>(query), 0, 0, ld};
    attention.key.data = const_cast<A*>(keys);
    attention.value.data = const_cast<A*>(values + row * S * attention.value.row);
    attention.output = {group.features + first * group.ld_features, 0, 0, group.ld_features};
    attention.lengths = memory.lengths ? memory.lengths + row : nullptr;
    attention.weights = group.alphas ? alphas_at(t, first) : nullptr;
    attention.masks = 0;
    if (memory.mask) attention.mask[attention.masks++] = {memory.mask + row * S, {0, 0, 0, 1}, true};
    if (weights.key_terms) attention.mask[attention.masks++] = {weights.key_terms + row * S, {0, 0, 0, 1}, false};
    if (memory.score == Score::boxcar || memory.score == Score::epanechnikov) {
      for (int64_t m = 0; m < count; ++m)
        for (int64_t s = 0; s < length_of(attention, 0); ++s)
          thread.distances[m * S + s] = near(query + m * ld, keys + s * memory.width);
      attention.mask[attention.masks++] = {thread.distances, {0, 0, S, 1}, false};
    }
    Arena arena(thread.attention);
    AttentionForward<A>(attention, {0, 1, nullptr}, arena)();
  }

  // The scores of the distance of query and key.
  A near(const A* query, const A* key) const {
    const int64_t width = search.memory.width;
    V squares{};
    for (int64_t k = 0; k < width; k += L) {
      const V apart = load_some<A>(query + k, width - k) - load_some<A>(key + k, width - k);
      squares += apart * apart;
    }
    const A distance = std::sqrt(sum_lanes<A>(squares));
    if (search.memory.score == Score::boxcar) return distance <= 1 ? 1 : 0;
    return distance < 1 ? 1 - distance : 0;
  }

  void output(int64_t t) const {
    const A* read = weights.attends ? group.features : h(t, top);
    const int64_t ld = weights.attends ? group.ld_features : group.hidden;
    multiply(weights.output, [&](int64_t place) { return read + place * ld; }, group.logits);
  }

  // The vectors themselves are the next step's input.
  void copy_outputs(int64_t t) const {
    const int64_t F = search.output_size;
    for (int64_t i = team.begin(rows); i < team.end(rows); ++i) {
      const int64_t out = (first_row + i) * search.steps + t;
      __builtin_memcpy((A*)search.outputs + out * F, group.logits + i * group.ld_logits, F * sizeof(A));
      if (group.alphas)
        __builtin_memcpy((A*)search.memory.alphas + out * search.memory.size, alphas_at(t, i),
                         search.memory.size * sizeof(A));
    }
  }

  void choose() const {
    for (int64_t i = team.begin(rows); i < team.end(rows); ++i)
      if (group.begin[i + 1] > group.begin[i])
        group.hypotheses.choose(
            i, [&](int64_t place) { return group.logits + place * group.ld_logits; }, thread.choice);
    team.wait();
    if (team.rank == 0) list_running();
    team.wait();
  }

  void list_running() const {
    int64_t count = 0;
    for (int64_t i = 0; i < rows; ++i) {
      group.begin[i] = count;
      for (int64_t k = 0; k < group.hypotheses.count(i); ++k) {
        Hypothesis<A>& one = group.hypotheses.of(i)[k];
        if (one.ended) continue;
        group.running[count] = {i, one.place, one.token};
        one.place = int32_t(count++);
      }
    }
    group.begin[rows] = *group.count = count;
  }
};

}  // namespace
