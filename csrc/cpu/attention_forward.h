// Attention forward: for a block of queries the products with all keys, softmax row by row, the product with the
// values. A block's scores stay in the second-level cache. Its twin is attention_backward.h.
#pragma once

#include "additive.h"
#include "products.h"
#include "softmax.h"

namespace {

using seq2seq_fast::Arena;
using seq2seq_fast::Heads;
using seq2seq_fast::Team;

template <class A>
inline A* head_of(const Heads& x, int64_t b, int64_t h) {
  return (A*)x.data + b * x.batch + h * x.head;
}

inline int64_t length_of(const Attention& attention, int64_t b) {
  return attention.lengths ? attention.lengths[b] : attention.keys;
}

// The keys that a block of queries up to `last` has to look at.
inline int64_t reach(const Attention& attention, int64_t length, int64_t last) {
  // a uniform row takes in even the keys after it
  return attention.causal && attention.empty_rows != EmptyRows::uniform && last < length ? last + 1 : length;
}

// How many of a row's weights are written: a uniform row has all.
template <class A>
inline int64_t written(const Attention& attention, int64_t n) {
  return groups(attention.empty_rows == EmptyRows::uniform ? attention.keys : n, lanes<A>) * lanes<A>;
}

// Queries whose scores are held at a time, and whether they are worth packed keys.
template <class A>
struct Blocks {
  static constexpr int64_t scores = 192 * 1024 / sizeof(A);
  int64_t ld;    // of a row of scores
  int64_t rows;  // of a block
  bool pack;

  explicit Blocks(const Attention& attention) : ld(padded_columns<A>(attention.keys)) {
    rows = scores / std::max<int64_t>(ld, 1) / max_tile_rows * max_tile_rows;
    rows = std::min(std::max<int64_t>(rows, max_tile_rows), attention.queries);
    pack = !attention.score_weight && attention.queries > 2 * dot_rows;
  }
  int64_t count(const Attention& attention) const { return groups(attention.queries, rows); }
};

template <class A>
struct AttentionForward {
  static constexpr int L = lanes<A>;

  const Attention& attention;
  Team team;
  Blocks<A> blocks{attention};
  int64_t kept_heads;  // whose keys and values are packed at a time
  A *scores, *product, *keys, *values;
  int64_t packed_batch = -1;
  int64_t* packed_head;

  static bool packs_values(const Attention& attention) { return attention.value_width % L != 0; }

  AttentionForward(const Attention& attention, Team team, Arena& arena)
      : attention(attention), team(team), kept_heads(attention.average ? attention.kv_heads : 1) {
    scores = arena.take<A>(blocks.rows * blocks.ld);
    product = arena.take<A>(blocks.rows * padded_columns<A>(attention.value_width));
    keys = arena.take<A>(blocks.pack ? kept_heads * blocks.ld * attention.width : 0);
    values = arena.take<A>(
        packs_values(attention) ? kept_heads * attention.keys * padded_columns<A>(attention.value_width) : 0);
    packed_head = arena.take<int64_t>(kept_heads);
  }

  void operator()() {
    const int64_t count = blocks.count(attention), heads = attention.average ? 1 : attention.heads;
    const int64_t items = attention.batch * heads * count;
    for (int64_t item = team.begin(items); item < team.end(items); ++item) {
      const int64_t b = item / count / heads, first = item % count * blocks.rows;
      const int64_t rows = std::min(blocks.rows, attention.queries - first);
      if (!attention.average) {
        block(b, item / count % heads, first, rows);
      } else {
        for (int64_t h = 0; h < attention.heads; ++h) block(b, h, first, rows);
      }
    }
  }

 private:
  void block(int64_t b, int64_t h, int64_t first, int64_t rows) {
    const int64_t kv = h / (attention.heads / attention.kv_heads), length = length_of(attention, b);
    const int64_t n = reach(attention, length, first + rows - 1), end = written<A>(attention, n);
    pack(b, kv, length);
    const int64_t slot = attention.average ? kv : 0;
    const A* query = head_of<A>(attention.query, b, h) + first * attention.query.row;
    const A* key = head_of<A>(attention.key, b, kv);
    if (attention.score_weight) {
      additive_scores<A>(query, attention.query.row, rows, key, attention.key.row, (const A*)attention.score_weight, n,
                         attention.width, scores, blocks.ld);
    } else {
      multiply_transposed<A>(query, attention.query.row, rows, key, attention.key.row,
                             blocks.pack ? keys + slot * blocks.ld * attention.width : nullptr, n, attention.width,
                             scores, blocks.ld);
    }
    A* lse = attention.lse ? (A*)attention.lse + (b * attention.heads + h) * attention.queries + first : nullptr;
    A most[max_rows_of_factors], factor[max_rows_of_factors];
    for (int64_t from = 0; from < rows; from += max_rows_of_factors) {
      const int64_t here = std::min<int64_t>(max_rows_of_factors, rows - from);
      const auto row = [&](int64_t r) { return ScoreRow<A>(attention, b, h, first + from + r, length, end); };
      A* const products = scores + from * blocks.ld;
      // in loops of their own, short enough for the processor to have several rows in flight
      for (int64_t r = 0; r < here; ++r) most[r] = row(r).finish_scores(products + r * blocks.ld);
      for (int64_t r = 0; r < here; ++r)
        factor[r] = row(r).exponentials(products + r * blocks.ld, most[r], lse ? lse + from + r : nullptr);
      for (int64_t r = 0; attention.weights && r < here; ++r)
        write_weights(b, h, first + from + r, products + r * blocks.ld, end, factor[r]);
      const int64_t ld = padded_columns<A>(attention.value_width);
      const bool packed = packs_values(attention);
      multiply_rows<A>(products, blocks.ld, here, n,
                       packed ? values + slot * attention.keys * ld : head_of<A>(attention.value, b, kv),
                       packed ? ld : attention.value.row, attention.value_width, product, ld, false);
      A* out = head_of<A>(attention.output, b, h) + (first + from) * attention.output.row;
      for (int64_t r = 0; r < here; ++r)
        for (int64_t v = 0; v < attention.value_width; v += L)
          store_some<A>(out + r * attention.output.row + v, load<A>(product + r * ld + v) * factor[r],
                        attention.value_width - v);
    }
  }

  void pack(int64_t b, int64_t kv, int64_t length) {
    if (b != packed_batch)
      for (int64_t k = 0; k < kept_heads; ++k) packed_head[k] = -1;
    packed_batch = b;
    const int64_t slot = attention.average ? kv : 0;
    if (packed_head[slot] == kv) return;
    packed_head[slot] = kv;
    if (blocks.pack)
      pack_columns<A>(keys + slot * blocks.ld * attention.width, head_of<A>(attention.key, b, kv), attention.key.row,
                      length, attention.width);
    if (packs_values(attention))
      pad_rows<A>(values + slot * attention.keys * padded_columns<A>(attention.value_width),
                  head_of<A>(attention.value, b, kv), attention.value.row, length, attention.value_width);
  }

  void write_weights(int64_t b, int64_t h, int64_t i, const A* row, int64_t end, A factor) {
    const int64_t S = attention.keys;
    A* to = (A*)attention.weights + ((attention.average ? b : b * attention.heads + h) * attention.queries + i) * S;
    const bool add = attention.average && h > 0;
    if (attention.average) factor /= attention.heads;
    for (int64_t j = 0; j < S; j += L) {
      // an empty row's factor may be NaN, for every key
      const Vec<A> weight = j < end ? load<A>(row + j) * factor : Vec<A>{} * factor;
      store_some<A>(to + j, add ? load_some<A>(to + j, S - j) + weight : weight, S - j);
    }
  }
};

}  // namespace
