// How the threads share a layer: a small cost model.
#pragma once

#include "../recurrence.h"
#include "team.h"

namespace seq2seq_fast {

struct Plan {
  int threads;  // that run the layer
  int looping;  // those of them that run the time loop; the others only take part in what is summed over time
  bool by_rows;  // threads own rows of the batch and never meet; else they own hidden units and meet at every step
};

inline Plan plan_for(const Layer& layer, bool backward) {
  const int64_t gates = gates_of(layer.cell), H = layer.hidden_size;
  const int64_t weights = gates * H * layer.state_size + (layer.direction[0].weight_hr ? H * layer.state_size : 0);
  const int64_t per_row = gates * H * layer.input_size + weights;
  const int64_t work = layer.sequence.rows * per_row * layer.directions;
  // a fork and join costs 2 us, in which a core does about 10^5 multiply-adds
  if (layer.threads == 1 || work < 400'000) return {1, 1, true};
  const int team = layer.threads / layer.directions;
  if (team <= 1) return {layer.threads, layer.threads, true};
  const int64_t rows = layer.sequence.batch / team;
  const int64_t step = layer.sequence.rows / layer.sequence.steps * weights;
  // Who owns rows waits for no core that is busy elsewhere, but reads all the weights. Where those leave its second-level
  // cache and the rows are few, units are better: GRU(512) on 32 rows runs at 261 GFLOP/s with them and at 215 with rows
  // (2 cores of a Sapphire Rapids; on Zen 4, whose third level is near, the two are within 3 %).
  const bool light = weights <= 300'000;
  // A few steps do not pack the weights, and want as many rows as fill a vector; forward, where there is work enough,
  // two vectors: with units, one step of GRU(256) on 32 rows takes 69 us and not 80, two on 48 rows 228 and not 338.
  const bool fills = layer.sequence.steps <= 4 && layer.sequence.batch >= 16;
  const int64_t least = !fills ? 8 : backward || weights < 100'000 ? 16 : 32;
  // A matrix unit is done with a few rows before it has all the weights: threads share those. LSTM(512, 512) in bfloat16
  // on 32 rows runs at 771 GFLOP/s so and at 597 with rows of their own; LSTM(1024, 1024) on 2560 rows at 1640 with rows
  // of their own and at 1230 without (2 cores of a Sapphire Rapids).
  const bool shares_weights = layer.dtype == Dtype::bfloat16 && layer.hidden_size >= 256 && rows >= 4 && rows < 256;
  if (!shares_weights && (rows >= 32 || (light && rows >= least))) return {layer.threads, layer.threads, true};
  if (step >= 20'000 && H >= 16 * team) return {layer.threads, layer.threads, false};  // a barrier costs 0.2 us
  if (rows >= 4) return {layer.threads, layer.threads, true};
  return {layer.threads, layer.directions, true};
}

// The team of one direction, out of `size` threads that run the layer.
inline Team direction_team(int rank, int size, int directions, Barrier* barriers, int* direction) {
  if (directions == 1 || size == 1) {
    *direction = 0;
    return {rank, size, &barriers[0]};
  }
  const int first = (size + 1) / 2;
  *direction = rank >= first;
  return rank < first ? Team{rank, first, &barriers[0]} : Team{rank - first, size - first, &barriers[1]};
}

}  // namespace seq2seq_fast
