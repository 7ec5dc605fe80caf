// Attention backward: a block of queries at a time, its weights computed again, for the keys and values of one head.
// Threads own whole heads of keys, so that no two add to the same gradient. Its twin is attention_forward.h.
#pragma once

#include "attention_forward.h"

namespace {

// Gradients that several heads add to: a copy for each thread, added up in the order of the threads.
template <class A>
struct Shares {
  A* d_mask[2] = {};
  A* d_score_weight = nullptr;
  const Attention& attention;

  explicit Shares(const Attention& attention) : attention(attention) {}
  Shares(const Attention& attention, int threads, Arena& arena) : attention(attention) {
    for (int k = 0; k < attention.masks; ++k)
      if (attention.mask[k].d_mask) d_mask[k] = arena.take<A>(threads * attention.mask[k].d_size);
    if (attention.score_weight) d_score_weight = arena.take<A>(threads * padded_columns<A>(attention.width));
  }

  void add_up(const Team& team) const {
    for (int k = 0; k < attention.masks; ++k)
      if (d_mask[k])
        add_up(team, d_mask[k], attention.mask[k].d_size, attention.mask[k].d_size, attention.mask[k].d_mask);
    if (attention.d_score_weight)
      add_up(team, d_score_weight, padded_columns<A>(attention.width), attention.width, attention.d_score_weight);
  }

 private:
  static void add_up(const Team& team, const A* shares, int64_t share, int64_t size, void* to) {
    for (int64_t i = team.begin(size); i < team.end(size); ++i) {
      A sum = shares[i];
      for (int t = 1; t < team.size; ++t) sum += shares[t * share + i];
      ((A*)to)[i] = sum;
    }
  }
};

template <class A>
struct AttentionBackward {
  static constexpr int L = lanes<A>;

  const Attention& attention;
  Team team;
  Blocks<A> blocks{attention};
  int64_t width = padded_columns<A>(attention.width), value_width = padded_columns<A>(attention.value_width);
  // rows are copied to whole vectors, and panels are packed, once for a head
  A *scores, *d_scores, *queries, *d_outputs, *d_queries, *key_panels, *value_panels, *keys, *d_keys, *d_values;
  A* d_mask[2];  // this thread's share
  A* d_score_weight;

  AttentionBackward(const Attention& attention, Team team, const Shares<A>& shares, Arena& arena)
      : attention(attention), team(team) {
    const int64_t S = blocks.ld;
    scores = arena.take<A>(blocks.rows * S);
    d_scores = arena.take<A>(blocks.rows * S);
    queries = arena.take<A>(blocks.rows * width);
    d_outputs = arena.take<A>(blocks.rows * value_width);
    d_queries = arena.take<A>(blocks.rows * width);
    key_panels = arena.take<A>(S * attention.width);
    value_panels = arena.take<A>(S * attention.value_width);
    keys = arena.take<A>(S * width);
    d_keys = arena.take<A>(S * width);
    d_values = arena.take<A>(S * value_width);
    for (int k = 0; k < 2; ++k)
      d_mask[k] = shares.d_mask[k] ? shares.d_mask[k] + team.rank * attention.mask[k].d_size : nullptr;
    d_score_weight = shares.d_score_weight ? shares.d_score_weight + team.rank * width : nullptr;
  }

  void operator()() {
    for (int k = 0; k < attention.masks; ++k)
      if (d_mask[k]) std::fill_n(d_mask[k], attention.mask[k].d_size, A(0));
    if (d_score_weight) std::fill_n(d_score_weight, width, A(0));
    const int64_t items = attention.batch * attention.kv_heads;
    for (int64_t item = team.begin(items); item < team.end(items); ++item)
      head(item / attention.kv_heads, item % attention.kv_heads);
  }

 private:
  void head(int64_t b, int64_t kv) {
    const int64_t length = length_of(attention, b), group = attention.heads / attention.kv_heads;
    const A *key = head_of<A>(attention.key, b, kv), *value = head_of<A>(attention.value, b, kv);
    if (!attention.score_weight) pack_columns<A>(key_panels, key, attention.key.row, length, attention.width);
    pack_columns<A>(value_panels, value, attention.value.row, length, attention.value_width);
    if (attention.d_query.data) pad_rows<A>(keys, key, attention.key.row, length, attention.width);
    std::fill_n(d_keys, attention.keys * width, A(0));
    std::fill_n(d_values, attention.keys * value_width, A(0));
    for (int64_t h = kv * group; h < (kv + 1) * group; ++h)
      for (int64_t first = 0; first < attention.queries; first += blocks.rows)
        block(b, h, first, std::min(blocks.rows, attention.queries - first), length);
    write(attention.d_key, b, kv, 0, attention.keys, d_keys, width, attention.width, A(attention.scale));
    write(attention.d_value, b, kv, 0, attention.keys, d_values, value_width, attention.value_width, A(1));
  }

  void block(int64_t b, int64_t h, int64_t first, int64_t rows, int64_t length) {
    const int64_t n = reach(attention, length, first + rows - 1), end = written<A>(attention, n), S = attention.keys;
    const A* key = head_of<A>(attention.key, b, h / (attention.heads / attention.kv_heads));
    const A* query = head_of<A>(attention.query, b, h) + first * attention.query.row;
    pad_rows<A>(queries, query, attention.query.row, rows, attention.width);
    if (attention.d_output.data) {
      pad_rows<A>(d_outputs, head_of<A>(attention.d_output, b, h) + first * attention.d_output.row,
                  attention.d_output.row, rows, attention.value_width);
      multiply_transposed<A>(d_outputs, value_width, rows, nullptr, 0, value_panels, n, attention.value_width, d_scores,
                             blocks.ld);
    } else {
      std::fill_n(d_scores, rows * blocks.ld, A(0));
    }
    const A* score_weight = (const A*)attention.score_weight;
    if (score_weight) {
      additive_scores<A>(queries, width, rows, key, attention.key.row, score_weight, n, attention.width, scores,
                         blocks.ld);
    } else {
      multiply_transposed<A>(queries, width, rows, nullptr, 0, key_panels, n, attention.width, scores, blocks.ld);
    }
    const A* lse = (const A*)attention.lse + (b * attention.heads + h) * attention.queries + first;
    for (int64_t r = 0; r < rows; ++r) {
      const ScoreRow<A> row(attention, b, h, first + r, length, end);
      const A* d_given = (const A*)attention.d_weights;
      if (d_given) d_given += ((attention.average ? b : b * attention.heads + h) * attention.queries + first + r) * S;
      row.backward(scores + r * blocks.ld, d_scores + r * blocks.ld, lse[r], d_given,
                   attention.average ? A(1) / attention.heads : A(1));
      row.add_mask_gradients(d_scores + r * blocks.ld, d_mask);
    }
    if (attention.d_value.data && attention.d_output.data)
      add_transposed<A>(scores, blocks.ld, n, rows, d_outputs, value_width, attention.value_width, d_values,
                        value_width);
    if (score_weight) {
      std::fill_n(d_queries, rows * width, A(0));
      for (int64_t r = 0; r < rows; ++r)
        additive_gradients<A>(queries + r * width, key, attention.key.row, score_weight, d_scores + r * blocks.ld, n,
                              attention.width, d_queries + r * width, d_keys, width, d_score_weight);
      write(attention.d_query, b, h, first, rows, d_queries, width, attention.width, A(1));
      return;
    }
    if (attention.d_key.data)
      add_transposed<A>(d_scores, blocks.ld, n, rows, queries, width, attention.width, d_keys, width);
    if (attention.d_query.data) {
      multiply_rows<A>(d_scores, blocks.ld, rows, n, keys, width, attention.width, d_queries, width, false);
      write(attention.d_query, b, h, first, rows, d_queries, width, attention.width, A(attention.scale));
    }
  }

  void write(const Heads& to, int64_t b, int64_t h, int64_t first, int64_t rows, const A* from, int64_t ld,
             int64_t columns, A scale) {
    if (!to.data) return;
    A* out = head_of<A>(to, b, h) + first * to.row;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t v = 0; v < columns; v += L)
        store_some<A>(out + r * to.row + v, load<A>(from + r * ld + v) * scale, columns - v);
  }
};

}  // namespace
