// What is chosen by a row of logits: the greatest, the k greatest, or one that is drawn. Of equal logits the lower token
// comes first.
#pragma once

#include "softmax.h"

namespace {

template <class A>
struct Ranked {
  A value;
  int64_t token;
};

// Rows of logits are readable in whole vectors.
template <class A>
struct Logits {
  static constexpr int L = lanes<A>;
  const A* x;
  int64_t count;

  Vec<A> from(int64_t j) const { return first_lanes<A>(load<A>(x + j), count - j, minus_infinity<A>); }

  A greatest() const {
    Vec<A> most = from(0);
    for (int64_t j = L; j < count; j += L) {
      const Vec<A> here = from(j);
      most = here > most ? here : most;
    }
    return greatest_lane<A>(most);
  }

  // The logarithm of the sum of e^(x - most).
  A log_sum(A most) const {
    Vec<A> sums{};
    for (int64_t j = 0; j < count; j += L) sums += exp_negative(from(j) - most);
    return std::log(sum_lanes<A>(sums));
  }

  // The k greatest, in falling order; k <= count.
  void top(int64_t k, Ranked<A>* best) const {
    int64_t found = 0;
    for (int64_t j = 0; j < count; j += L) {
      if (found == k && !(greatest_lane<A>(from(j)) > best[k - 1].value)) continue;
      for (int64_t i = j; i < count && i < j + L; ++i) {
        if (found == k && !(x[i] > best[k - 1].value)) continue;
        int64_t place = found < k ? found++ : k - 1;
        for (; place > 0 && x[i] > best[place - 1].value; --place) best[place] = best[place - 1];
        best[place] = {x[i], i};
      }
    }
  }
};

// The token at `uniform` of the distribution, as reference_search.draw says. weights, order: room for `count`, in whole
// vectors.
template <class A>
int64_t draw(const Logits<A>& logits, A most, A uniform, double temperature, int64_t top_k, double top_p, A* weights,
             Ranked<A>* order) {
  const int64_t count = logits.count;
  for (int64_t j = 0; j < count; j += lanes<A>)
    store<A>(weights + j, exp_negative((logits.from(j) - most) / A(temperature)));
  if (top_k || top_p < 1) {
    for (int64_t j = 0; j < count; ++j) order[j] = {weights[j] > 0 ? weights[j] : 0, j};  // sort takes no NaN
    std::sort(order, order + count, [](const Ranked<A>& a, const Ranked<A>& b) {
      return a.value > b.value || (a.value == b.value && a.token < b.token);
    });
    int64_t kept = top_k ? std::min(top_k, count) : count;
    if (top_p < 1) {
      double all = 0, before = 0;
      for (int64_t j = 0; j < kept; ++j) all += order[j].value;
      int64_t enough = 0;
      do {
        before += order[enough++].value;
      } while (enough < kept && before < top_p * all);
      kept = enough;
    }
    for (int64_t j = kept; j < count; ++j) weights[order[j].token] = 0;
  }
  double all = 0, sum = 0;
  for (int64_t j = 0; j < count; ++j) all += weights[j];
  int64_t last = 0;
  for (int64_t j = 0; j < count; ++j) {
    if (!(weights[j] > 0)) continue;
    last = j;
    sum += weights[j];
    if (sum > uniform * all) break;
  }
  return last;
}

}  // namespace
