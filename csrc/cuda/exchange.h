// How the blocks of a group hand each other their part of the state. There are two states, of even and of odd turns: one
// is written while the other is read, and who writes a state again has seen that all have read it. Turn 0 is both.
#pragma once

#include "product.h"

namespace seq2seq_fast {

// Through global memory. A block raises its flag when its part is written; a warp waits for the blocks it reads from.
template <class E, int slots>
struct GridExchange {
  static constexpr bool needs_clusters = false;

  const Group& group;
  const Plan& plan = group.plan;
  StateLayout<E, slots> layout{plan.chunks};
  uint32_t* flags = (uint32_t*)((unsigned char*)group.loop.workspace +
                                group.number * (flag_bytes(plan.sizes.blocks) + 2 * plan.state_bytes));
  unsigned char* states = (unsigned char*)flags + flag_bytes(plan.sizes.blocks);
  uint32_t turn = 0;
  int first_block = 0, last_block = 0;

  // This warp reads the chunks [begin, end). The launch has filled the workspace with zeros.
  __device__ void start(int begin, int end) {
    first_block = begin / slots * chunk<E> / plan.sizes.units;
    last_block = ((end + slots - 1) / slots * chunk<E> + plan.sizes.units - 1) / plan.sizes.units;
    if (last_block > plan.sizes.blocks) last_block = plan.sizes.blocks;
  }
  __device__ void write(int row, int slot, int unit, E value, int state) {
    *(E*)(states + state * plan.state_bytes + layout.at(row, slot, unit)) = value;
  }
  __device__ void publish(int) {
    __syncthreads();
    ++turn;
    if (threadIdx.x == 0) store_release(flags + group.rank, turn);
  }
  __device__ void await() {
    for (int block = first_block + int(threadIdx.x) % 32; block < last_block; block += 32)
      while (load_acquire(flags + block) < turn) {
      }
    __syncwarp();
  }
  __device__ uint4 read(int at) const {
    return load_global((const uint4*)(states + ((turn - 1) & 1) * plan.state_bytes + at));
  }
  __device__ void finish() {}
};

// Through the shared memory of the blocks of a cluster.
template <class E, int slots>
struct ClusterExchange {
  static constexpr bool needs_clusters = true;

  const Group& group;
  const Plan& plan = group.plan;
  StateLayout<E, slots> layout{plan.chunks};
  unsigned char* states = shared_memory() + plan.exchange;
  int state_bytes = int(plan.state_bytes);
  uint32_t turn = 0;

  __device__ void start(int, int) {
    for (int i = threadIdx.x * granule_bytes; i < 2 * state_bytes; i += threads * granule_bytes)
      *(uint4*)(states + i) = uint4{0, 0, 0, 0};
    cluster_arrive();
    cluster_wait();
  }
  __device__ void write(int row, int slot, int unit, E value, int state) {
    *(E*)(states + state * state_bytes + layout.at(row, slot, unit)) = value;
  }
  // Hands this block's units of the first `rows` rows to the others, a warp for each: 8 lanes' 16 bytes of 16 rows at
  // a time.
  __device__ void publish(int rows) {
    __syncthreads();
    constexpr int lane_units = granule<E> / 2;
    const int units = layout.chunks / slots * chunk<E> - group.first_unit;  // the last block may own more
    const int pieces = (units < plan.sizes.units ? units : plan.sizes.units) / lane_units * 8;
    for (int peer = threadIdx.x / 32; peer < plan.sizes.blocks; peer += warps) {
      if (peer == group.rank) continue;
      for (int row = 0; row < rows; row += tile_rows)
        for (int slot = 0; slot < slots; ++slot)
          for (int i = threadIdx.x % 32; i < pieces; i += 32) {
            const int at = layout.at(row + i % 8, slot, group.first_unit + i / 8 * lane_units);
            for (int state = turn & 1; state < (turn == 0 ? 2 : 1 + int(turn & 1)); ++state) {
              uint4* piece = (uint4*)(states + state * state_bytes + at);
              store_peer(piece, peer, *piece);
            }
          }
    }
    ++turn;
    cluster_arrive();
  }
  __device__ void await() { cluster_wait(); }
  __device__ uint4 read(int at) const { return *(const uint4*)(states + ((turn - 1) & 1) * state_bytes + at); }
  // No block ends while others still write to it.
  __device__ void finish() { cluster_wait(); }
};

}  // namespace seq2seq_fast
