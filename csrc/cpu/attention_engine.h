// Runs attention on a team: measures the memory, deals it out, and adds up what the threads found for a shared gradient.
#pragma once

#include "attention_backward.h"

namespace {

using seq2seq_fast::Dtype;

// Threads that are worth their fork and join.
inline int attention_threads(const Attention& attention, int64_t items) {
  const int64_t work = attention.batch * attention.heads * attention.queries * attention.keys *
                       (attention.width + attention.value_width) * (attention.score_weight ? 16 : 1);
  return work < 400'000 ? 1 : int(std::min<int64_t>(attention.threads, std::max<int64_t>(items, 1)));
}

template <class A>
void forward_attention(const Attention& attention) {
  const int64_t heads = attention.average ? 1 : attention.heads;
  const int threads = attention_threads(attention, attention.batch * heads * Blocks<A>(attention).count(attention));
  Arena counting(nullptr);
  AttentionForward<A>(attention, {0, 1, nullptr}, counting);
  const Block block(threads * counting.used());
  run_team(threads, [&](int rank, int size) {
    Arena mine(block.data() + rank * counting.used());
    AttentionForward<A>(attention, {rank, size, nullptr}, mine)();
  });
}

template <class A>
void backward_attention(const Attention& attention) {
  const int threads = attention_threads(attention, attention.batch * attention.kv_heads);
  const Shares<A> none(attention);
  Arena counting(nullptr);
  AttentionBackward<A>(attention, {0, 1, nullptr}, none, counting);
  const int64_t working = counting.used();
  Shares<A>(attention, threads, counting);
  const Block block((threads - 1) * working + counting.used());
  Arena shared(block.data() + threads * working);
  const Shares<A> shares(attention, threads, shared);
  Barrier barrier;
  run_team(threads, [&](int rank, int size) {
    const Team team{rank, size, &barrier};
    Arena mine(block.data() + rank * working);
    AttentionBackward<A>(attention, team, shares, mine)();
    team.wait();
    shares.add_up(team);
  });
}

void attention_forward(const Attention& attention) {
  attention.dtype == Dtype::float64 ? forward_attention<double>(attention) : forward_attention<float>(attention);
}

void attention_backward(const Attention& attention) {
  attention.dtype == Dtype::float64 ? backward_attention<double>(attention) : backward_attention<float>(attention);
}

}  // namespace
