// What all rows of a search share: the decoder's weights, and what of its products is known before the first step.
#pragma once

#include "../search.h"
#include "products.h"
#include "weight.h"

namespace {

using seq2seq_fast::Score;
using seq2seq_fast::Search;
using seq2seq_fast::StackedLayer;

// How many rows make up for packing: worth_packing has the measurements.
inline int64_t rows_worth_packing(const Search& search) { return 24 + search.hidden_size / 16; }

template <class A, template <class> class CellOf>
struct LayerWeights {
  using Gates = Weight<A, CellOf>;
  using C = typename Gates::P::C;
  Gates ih, hh;

  LayerWeights(const Search& search, int64_t l, Arena& arena)
      : ih(search.layer[l].weight_ih, search.hidden_size,
           l ? search.hidden_size : search.input_size + search.context_size, l ? search.hidden_size : search.input_size,
           arena),
        hh(search.layer[l].weight_hh, search.hidden_size, search.hidden_size, search.hidden_size, arena) {}

  void set_bias(const StackedLayer& layer) const {
    const A *bias_ih = (const A*)layer.bias_ih, *bias_hh = (const A*)layer.bias_hh;
    const auto apart = [](int g) { return C::splits_bias && g == C::gates - 1; };
    const int64_t H = hh.panels.H;
    ih.set_bias([&](int g, int64_t j) {
      return !bias_ih ? A(0) : apart(g) ? bias_ih[g * H + j] : bias_ih[g * H + j] + bias_hh[g * H + j];
    });
    hh.set_bias([&](int g, int64_t j) { return bias_hh && apart(g) ? bias_hh[g * H + j] : A(0); });
  }
};

template <class A, template <class> class CellOf>
struct DecoderWeights {
  using Gates = Weight<A, CellOf>;
  static constexpr int L = lanes<A>;

  const Search& search;
  const bool attends = search.memory.keys;
  const int64_t features = search.hidden_size + (attends ? search.memory.value_width : 0);  // that the output reads
  std::vector<LayerWeights<A, CellOf>> layers;
  Gates context;
  Weight<A, Plain> query, output;
  A* context_gates;  // (B, columns): what the context adds to the first layer's input gates; null without
  A* table;  // (vocabulary, columns): the first layer's input gates of each token; null where steps multiply less
  A* values;  // (B, S, padded W); null where values are whole vectors as they lie
  A* key_terms;  // (B, S): -|k|^2 / 2 of the Gaussian score, else null

  DecoderWeights(const Search& search, Arena& arena)
      : search(search),
        layers(make_layers(search, arena)),
        context((const A*)search.layer[0].weight_ih + search.input_size, search.hidden_size,
                search.input_size + search.context_size, search.context_size, arena),
        query(search.memory.weight_query, search.memory.weight_query ? search.memory.width : 0, search.hidden_size,
              search.hidden_size, arena),
        output(search.weight_out, search.output_size, features, features, arena) {
    const auto& memory = search.memory;
    const auto some = [&](bool needed, int64_t count) { return needed ? arena.take<A>(count) : nullptr; };
    context_gates = some(search.context, search.rows * context.columns());
    table = some(search.embedding && search.vocabulary <= search.steps * search.rows * search.beams,
                 search.vocabulary * context.columns());
    values = some(attends && memory.value_width % L, search.rows * memory.size * padded_columns<A>(memory.value_width));
    key_terms = some(attends && memory.score == Score::gaussian, search.rows * memory.size);
  }

  void pack(const Team& team) const {
    for (const auto& layer : layers) {
      if (!table || &layer != &layers[0]) layer.ih.pack(team);
      layer.hh.pack(team);
    }
    query.pack(team);
    output.pack(team);
  }

  // The team meets at the end.
  void prepare(const Team& team) const {
    const bool pack_table = search.vocabulary >= rows_worth_packing(search);
    const bool pack_context = search.rows >= rows_worth_packing(search);
    if (team.rank == 0) set_biases();
    if (table && pack_table) layers[0].ih.pack(team);
    if (context_gates && pack_context) context.pack(team);
    team.wait();
    if (table)
      multiply(team, layers[0].ih, pack_table, (const A*)search.embedding, search.input_size, search.vocabulary, table);
    if (context_gates)
      multiply(team, context, pack_context, (const A*)search.context, search.context_size, search.rows, context_gates);
    const auto& memory = search.memory;
    for (int64_t b = team.begin(search.rows); attends && b < team.end(search.rows); ++b) {
      const int64_t ld = padded_columns<A>(memory.value_width);
      if (values)
        pad_rows<A>(values + b * memory.size * ld, (const A*)memory.values + b * memory.size * memory.value_width,
                    memory.value_width, memory.size, memory.value_width);
      for (int64_t s = b * memory.size; key_terms && s < (b + 1) * memory.size; ++s) {
        const A* key = (const A*)memory.keys + s * memory.width;
        Vec<A> squares{};
        for (int64_t k = 0; k < memory.width; k += L) {
          const Vec<A> part = load_some<A>(key + k, memory.width - k);
          squares += part * part;
        }
        key_terms[s] = sum_lanes<A>(squares) * A(-0.5);
      }
    }
    team.wait();
  }

 private:
  static std::vector<LayerWeights<A, CellOf>> make_layers(const Search& search, Arena& arena) {
    std::vector<LayerWeights<A, CellOf>> layers;
    for (int64_t l = 0; l < search.layers; ++l) layers.emplace_back(search, l, arena);
    return layers;
  }

  void set_biases() const {
    for (int64_t l = 0; l < search.layers; ++l) layers[l].set_bias(search.layer[l]);
    const auto plain = [](const void* bias) {
      return [=](int, int64_t j) { return bias ? ((const A*)bias)[j] : A(0); };
    };
    context.set_bias(plain(nullptr));
    query.set_bias(plain(search.memory.bias_query));
    output.set_bias(plain(search.bias_out));
  }

  static void multiply(const Team& team, const Gates& weight, bool packed, const A* rows, int64_t ld, int64_t count,
                       A* out) {
    const int64_t panels = weight.panels.count();
    for (int64_t p = team.begin(panels); p < team.end(panels); ++p)
      for (int64_t i = 0; i < count; i += max_rows) {
        const int64_t here = std::min<int64_t>(max_rows, count - i);
        const A* row[max_rows];
        for (int64_t m = 0; m < here; ++m) row[m] = rows + (i + m) * ld;
        weight.multiply(packed, p, here, row, out + i * weight.columns() + p * Gates::P::width, weight.columns());
      }
  }
};

}  // namespace
