// The hypotheses of some rows: what each step chooses among their continuations, and the way back to the tokens.
#pragma once

#include "../search.h"
#include "choice.h"

namespace {

using seq2seq_fast::Arena;
using seq2seq_fast::Search;

template <class A>
struct Hypothesis {
  A score, sum;  // sum: of the log-probabilities
  int64_t token, length;
  int32_t slot;   // of the K, where it was a step ago
  int32_t place;  // of its state among those that run; -1 where it had ended
  bool ended;
};

// How a hypothesis came to be: by this token, from this slot, whose state was at this place; -1: it had ended before.
struct Choice {
  int64_t token;
  int32_t slot, place;
};

// What a thread chooses with.
template <class A>
struct ChoiceScratch {
  Hypothesis<A>* best;  // (K)
  Ranked<A>* top;       // (K)
  A* weights;           // (V), in whole vectors
  Ranked<A>* order;     // likewise

  ChoiceScratch(const Search& search, Arena& arena)
      : best(arena.take<Hypothesis<A>>(search.beams)), top(arena.take<Ranked<A>>(search.beams)) {
    const int64_t drawn = search.uniforms ? search.output_size + lanes<A> : 0;
    weights = arena.take<A>(drawn);
    order = arena.take<Ranked<A>>(drawn);
  }
};

template <class A>
struct Hypotheses {
  const Search& search;
  int64_t first_row;
  Hypothesis<A>* slots;  // (rows, K), the best first
  Choice* choices;       // (T, rows, K)
  int64_t* steps;        // (rows), those that a row has taken
  int64_t rows;

  Hypotheses(const Search& search, int64_t first_row, int64_t rows, Arena& arena)
      : search(search),
        first_row(first_row),
        slots(arena.take<Hypothesis<A>>(rows * search.beams)),
        choices(arena.take<Choice>(search.steps * rows * search.beams)),
        steps(arena.take<int64_t>(rows)),
        rows(rows) {}

  // At the first step a row has one hypothesis, of nothing.
  int64_t count(int64_t row) const { return steps[row] ? search.beams : 1; }
  Hypothesis<A>* of(int64_t row) const { return slots + row * search.beams; }

  void begin(int64_t row) const {
    steps[row] = 0;
    of(row)[0] = {0, 0, search.first_token[first_row + row], 0, 0, int32_t(row), false};
  }

  // The token that a row has to take, or -1.
  int64_t forced(int64_t row, int64_t t) const {
    return search.forced ? search.forced[t * search.rows + first_row + row] : -1;
  }

  bool done(int64_t row) const {
    for (int64_t k = 0; k < count(row); ++k)
      if (!of(row)[k].ended) return false;
    return true;
  }

  // One more step of a row; logits_at(place): those of the hypothesis whose state is there.
  template <class LogitsAt>
  void choose(int64_t row, LogitsAt logits_at, const ChoiceScratch<A>& scratch) const {
    const int64_t t = steps[row];
    if (forced(row, t) >= 0) {
      force(row, t);
    } else {
      search.uniforms ? draw_one(row, t, logits_at, scratch) : keep_best(row, t, logits_at, scratch);
    }
    steps[row] = t + 1;
    for (int64_t k = 0; k < search.beams; ++k) {
      const Hypothesis<A>& hypothesis = of(row)[k];
      choices[(t * rows + row) * search.beams + k] = {hypothesis.token, hypothesis.slot, hypothesis.place};
    }
  }

  // The tokens of a row's hypotheses, their lengths and scores, and the alphas that alphas_at(t, place) has.
  template <class AlphasAt>
  void write(int64_t row, AlphasAt alphas_at) const {
    const int64_t T = search.steps, K = search.beams, S = search.memory.size;
    for (int64_t k = 0; k < K; ++k) {
      const int64_t out = (first_row + row) * K + k;
      search.lengths[out] = of(row)[k].length;
      ((A*)search.scores)[out] = of(row)[k].score;
      int64_t slot = k;
      for (int64_t t = T - 1; t >= 0; --t) {
        const bool taken = t < steps[row];
        const Choice choice = taken ? choices[(t * rows + row) * K + slot] : Choice{search.pad, int32_t(slot), -1};
        search.tokens[out * T + t] = choice.token;
        if (search.memory.alphas) {
          A* alphas = (A*)search.memory.alphas + (out * T + t) * S;
          if (choice.place < 0) {
            __builtin_memset(alphas, 0, S * sizeof(A));
          } else {
            __builtin_memcpy(alphas, alphas_at(t, choice.place), S * sizeof(A));
          }
        }
        slot = choice.slot;
      }
    }
  }

 private:
  // ((5 + length) / 6) ** length_penalty: Wu et al., arXiv 1609.08144, equation 14.
  A penalty(int64_t length) const { return A(std::pow((5.0 + double(length)) / 6.0, search.length_penalty)); }

  void force(int64_t row, int64_t t) const {
    Hypothesis<A>& one = of(row)[0];
    one.token = forced(row, t);
    one.length = t + 1;
    one.score = one.sum / penalty(t + 1);
    one.ended = one.token == search.eos;
  }

  template <class LogitsAt>
  void draw_one(int64_t row, int64_t t, LogitsAt logits_at, const ChoiceScratch<A>& scratch) const {
    Hypothesis<A>& one = of(row)[0];
    const Logits<A> logits{logits_at(one.place), search.output_size};
    const A most = logits.greatest();
    one.token = draw<A>(logits, most, A(search.uniforms[t * search.rows + first_row + row]), search.temperature,
                        search.top_k, search.top_p, scratch.weights, scratch.order);
    one.sum += (logits.x[one.token] - most) - logits.log_sum(most);
    one.score = one.sum / penalty(t + 1);
    one.length = t + 1;
    one.ended = one.token == search.eos;
  }

  template <class LogitsAt>
  void keep_best(int64_t row, int64_t t, LogitsAt logits_at, const ChoiceScratch<A>& scratch) const {
    const A divisor = penalty(t + 1);
    const int64_t K = search.beams;
    int64_t found = 0;
    // They come by slot and by falling score, so that of equal ones the first stays.
    const auto keep = [&](const Hypothesis<A>& candidate) {
      if (found == K && !(candidate.score > scratch.best[K - 1].score)) return;
      int64_t place = found < K ? found++ : K - 1;
      for (; place > 0 && candidate.score > scratch.best[place - 1].score; --place)
        scratch.best[place] = scratch.best[place - 1];
      scratch.best[place] = candidate;
    };
    for (int64_t k = 0; k < count(row); ++k) {
      const Hypothesis<A>& now = of(row)[k];
      if (now.ended) {
        keep({now.score, now.sum, search.pad, now.length, int32_t(k), -1, true});
        continue;
      }
      const Logits<A> logits{logits_at(now.place), search.output_size};
      logits.top(K, scratch.top);
      const A most = scratch.top[0].value, log_sum = logits.log_sum(most);
      for (int64_t i = 0; i < K; ++i) {
        const auto [value, token] = scratch.top[i];
        const A sum = now.sum + ((value - most) - log_sum);
        keep({sum / divisor, sum, token, t + 1, int32_t(k), now.place, token == search.eos});
      }
    }
    for (int64_t k = 0; k < K; ++k) of(row)[k] = scratch.best[k];
  }
};

}  // namespace
