// Runs a search on a team: shares it out, measures the memory, deals it out.
#pragma once

#include "search_loop.h"

namespace {

// Rows in groups that never meet, each with its threads.
struct SearchPlan {
  int groups, threads;  // threads: of a group

  explicit SearchPlan(const Search& search, int64_t features) {
    const int64_t H = search.hidden_size, hypotheses = search.rows * search.beams;
    const int64_t inputs = search.input_size + H + (search.layers - 1) * 2 * H;
    const int64_t step =
        hypotheses * (seq2seq_fast::gates_of(search.cell) * H * inputs + features * search.output_size);
    const int64_t barriers = search.layers + 5;  // of a step: attention has two, the choice too
    groups = threads = 1;
    // the figures are those of plan_for
    if (search.threads == 1 || step * search.steps < 400'000) return;
    if (search.rows >= 4 * search.threads && hypotheses >= 8 * search.threads) {
      groups = search.threads;
    } else if (step >= 20'000 * barriers && H >= 16 * search.threads) {
      threads = search.threads;
    }
  }
};

template <class A, template <class> class CellOf>
void run_search(const Search& search) {
  using Weights = DecoderWeights<A, CellOf>;
  using Group = GroupMemory<A, CellOf>;
  Arena counting(nullptr);
  const Weights measured(search, counting);
  const SearchPlan plan(search, measured.features);
  const int64_t shared = counting.used(), rows = groups(search.rows, plan.groups);
  Arena group_counting(nullptr), thread_counting(nullptr);
  Group(measured, 0, rows, group_counting);
  ThreadMemory<A>(measured, thread_counting);
  const int64_t group_size = group_counting.used(), thread_size = thread_counting.used();
  const int threads = plan.groups * plan.threads;
  const Block block(shared + plan.groups * group_size + threads * thread_size);
  Arena arena(block.data());
  const Weights weights(search, arena);
  const bool packed = plan.groups > 1;  // they would have to meet to pack later
  Barrier all, of_group;  // with more than one group, each is one thread, which waits for none
  run_team(threads, [&](int rank, int size) {
    const Team everyone{rank, size, &all};
    weights.prepare(everyone);
    if (packed) weights.pack(everyone);
    everyone.wait();
    const int64_t g = rank / plan.threads;
    const int64_t first = search.rows * g / plan.groups, end = search.rows * (g + 1) / plan.groups;
    Arena group_arena(block.data() + shared + g * group_size);
    const Group group(weights, first, end - first, group_arena);
    Arena thread_arena(block.data() + shared + plan.groups * group_size + rank * thread_size);
    const ThreadMemory<A> thread(weights, thread_arena);
    SearchLoop<A, CellOf>{weights, group, thread, {rank % plan.threads, plan.threads, &of_group}, packed}();
  });
}

template <class A>
void search_with(const Search& search) {
  switch (search.cell) {
    case Cell::gru: return run_search<A, Gru>(search);
    case Cell::lstm: return run_search<A, Lstm>(search);
    case Cell::rnn_tanh: return run_search<A, RnnTanh>(search);
    case Cell::rnn_relu: return run_search<A, RnnRelu>(search);
  }
}

void search(const Search& search) {
  search.dtype == Dtype::float64 ? search_with<double>(search) : search_with<float>(search);
}

}  // namespace
