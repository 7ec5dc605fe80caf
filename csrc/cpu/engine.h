// One engine, for the instruction set that the file including this one has chosen.
#pragma once

#include "simd.h"

#include "../cells/gru.h"
#include "../cells/lstm.h"
#include "../cells/rnn.h"
#include "gradients.h"

namespace {

using seq2seq_fast::Barrier;
using seq2seq_fast::Block;
using seq2seq_fast::Cell;
using seq2seq_fast::Dtype;
using seq2seq_fast::Engine;
using seq2seq_fast::FlushDenormals;

#ifdef SF_AMX
using MatrixRegisters = amx::Registers;
#else
struct [[maybe_unused]] MatrixRegisters {};
#endif

// Runs body(rank, size) on a team.
template <class Body>
void run_team(int threads, Body body) {
  if (threads == 1) {
    const FlushDenormals flush;
    const MatrixRegisters registers;
    body(0, 1);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    const FlushDenormals flush;
    const MatrixRegisters registers;
    body(omp_get_thread_num(), omp_get_num_threads());
  }
}

// Runs loop(direction, team) for the directions that are this thread's.
template <class Loop>
void run_directions(const Layer& layer, int rank, int looping, Barrier* barriers, Loop loop) {
  if (rank >= looping) return;
  int direction;
  const Team team = seq2seq_fast::direction_team(rank, looping, layer.directions, barriers, &direction);
  if (looping >= layer.directions) return loop(direction, team);
  for (direction = 0; direction < layer.directions; ++direction) loop(direction, team);
}

inline int team_size(const Plan& plan, const Layer& layer) {
  return std::max(1, (plan.looping + layer.directions - 1) / layer.directions);
}

template <class E, template <class> class CellOf>
struct Run {
  using Memory = ForwardMemory<E, CellOf>;
  using LoopMemory = BackwardMemory<E, CellOf>;
  using Inputs = InputGradient<E, CellOf>;

  static void forward(const Layer& layer) {
    const Plan plan = seq2seq_fast::plan_for(layer, false);
    const auto memory = [&](int d, Arena& arena) {
      return Memory(layer, layer.direction[d], team_size(plan, layer), plan.by_rows, arena);
    };
    Arena counting(nullptr);
    for (int d = 0; d < layer.directions; ++d) memory(d, counting);
    const Block block(counting.used());
    Arena arena(block.data());
    const Memory first = memory(0, arena), second = layer.directions > 1 ? memory(1, arena) : first;
    Barrier barriers[2];
    run_team(std::max(1, plan.looping), [&](int rank, int size) {
      run_directions(layer, rank, std::min(size, plan.looping), barriers, [&](int d, const Team& team) {
        Forward<E, CellOf>{layer, layer.direction[d], d * layer.state_size, d ? second : first, team, plan.by_rows}();
      });
    });
  }

  static void backward(const Layer& layer) {
    const Plan plan = seq2seq_fast::plan_for(layer, true);
    Arena counting(nullptr);
    deal(layer, plan, counting);
    const Block block(counting.used());
    Arena arena(block.data());
    const Dealt dealt = deal(layer, plan, arena);
    const LoopMemory* loops[] = {&dealt.loop[0], &dealt.loop[1]};
    Barrier barriers[2], all;
    run_team(plan.threads, [&](int rank, int size) {
      const Team everyone{rank, size, &all};
      const Inputs inputs{layer, loops, dealt.weight_ih, everyone};
      if (layer.d_input.data) inputs.pack();
      run_directions(layer, rank, std::min(size, plan.looping), barriers, [&](int d, const Team& team) {
        Backward<E, CellOf>{layer, layer.direction[d], d * layer.state_size, dealt.loop[d], team, plan.by_rows}();
      });
      everyone.wait();
      for (int d = 0; d < layer.directions; ++d)
        Gradients<E, CellOf>{layer, layer.direction[d], dealt.loop[d], dealt.gradients, everyone}.weights();
      if (layer.d_input.data) inputs();
    });
  }

 private:
  struct Dealt {
    LoopMemory loop[2];
    E* weight_ih[2];
    GradientMemory<E> gradients;
  };

  static E* take_some(Arena& arena, int64_t count) { return count ? arena.template take<E>(count) : nullptr; }

  static Dealt deal(const Layer& layer, const Plan& plan, Arena& arena) {
    const int last = layer.directions - 1;
    const LoopMemory first(layer, layer.direction[0], arena);
    return {{first, last ? LoopMemory(layer, layer.direction[1], arena) : first},
            {take_some(arena, Inputs::panels_size(layer)), take_some(arena, last ? Inputs::panels_size(layer) : 0)},
            {layer, plan.threads, arena}};
  }
};

template <class E, class Do>
void with_cell(Cell cell, Do run) {
  switch (cell) {
    case Cell::gru: return run(Run<E, Gru>{});
    case Cell::lstm: return run(Run<E, Lstm>{});
    case Cell::rnn_tanh: return run(Run<E, RnnTanh>{});
    case Cell::rnn_relu: return run(Run<E, RnnRelu>{});
  }
}

template <class Do>
void with_dtype(Dtype dtype, Cell cell, Do run) {
  switch (dtype) {
    case Dtype::float32: return with_cell<float>(cell, run);
    case Dtype::float64: return with_cell<double>(cell, run);
    case Dtype::bfloat16:
#ifdef SF_BFLOAT16
      return with_cell<bfloat16>(cell, run);
#else
      __builtin_unreachable();  // ops.cpp asks engine().bfloat16 first
#endif
  }
}

void forward(const Layer& layer) {
  with_dtype(layer.dtype, layer.cell, [&](auto run) { run.forward(layer); });
}

void backward(const Layer& layer) {
  with_dtype(layer.dtype, layer.cell, [&](auto run) { run.backward(layer); });
}

}  // namespace

#include "attention_engine.h"
#include "linear.h"
#include "search_engine.h"

namespace {

// The fastest tile on operands that stay in the first-level cache.
double peak(int threads) {
  constexpr int rows = tile_rows(3), K = 64, times = 20'000, width = 3 * lanes<float>;
  double best = 0;
  for (int trial = 0; trial < 10; ++trial) {
    const double begin = omp_get_wtime();
    run_team(threads, [&](int, int) {
      alignas(64) float b[K * width] = {}, c[rows * width] = {}, values[K] = {};
      const float* a[rows];
      for (int m = 0; m < rows; ++m) a[m] = values;
      for (int k = 0; k < times; ++k) {
        tile_for<float>(rows, 3)(0, K, a, 1, false, b, width, c, width, nullptr, true, (const char*)b);
        asm volatile("" : : "r"(b), "r"(c), "r"(values) : "memory");  // or one call would do for all
      }
    });
    best = std::max(best, 2.0 * threads * times * K * rows * width / (omp_get_wtime() - begin));
  }
  return best * 1e-9;
}

}  // namespace

namespace seq2seq_fast {
#ifdef SF_BFLOAT16
static constexpr bool has_bfloat16 = true;
#else
static constexpr bool has_bfloat16 = false;
#endif
extern const Engine SF_ENGINE;
const Engine SF_ENGINE = {SF_NAME, has_bfloat16,   forward,         backward, attention_forward, attention_backward,
                          search,  linear_forward, linear_backward, peak};
}  // namespace seq2seq_fast
