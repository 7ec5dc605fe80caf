// How the blocks of a group hand each other their part of the state. There are two states, of even and of odd turns: one
// is written while the other is read, and who writes a state again has seen that all have read it.
#pragma once

#include "product.h"

namespace seq2seq_fast {

// Through global memory. A block raises its flag when its part is written; a warp waits for the blocks it reads from.
template <class E>
struct GridExchange {
  const Group& group;
  StateLayout<E> layout;
  const Plan& plan = group.plan;
  uint32_t* flags = (uint32_t*)((unsigned char*)group.loop.workspace +
                                group.number * (flag_bytes(plan.sizes.blocks) + 2 * plan.state_bytes));
  unsigned char* states = (unsigned char*)flags + flag_bytes(plan.sizes.blocks);
  uint32_t turn = 0;

  // The launch has filled the workspace with zeros.
  __device__ void start() {}
  __device__ void write(int row, int slot, int unit, E value, int state) {
    *(E*)(states + state * plan.state_bytes + layout.at(row, slot, unit)) = value;
  }
  __device__ void publish(int) {
    __syncthreads();
    ++turn;
    if (threadIdx.x == 0) store_release(flags + group.rank, turn);
  }
  // Until the chunks [begin, end) of the last state are there.
  __device__ void await(int begin, int end) {
    const int first = begin / layout.slots * chunk<E> / plan.sizes.units;
    const int last = int(divide_up(divide_up(end, layout.slots) * chunk<E>, plan.sizes.units));
    for (int block = first + int(threadIdx.x) % 32; block < last && block < plan.sizes.blocks; block += 32)
      while (load_acquire(flags + block) < turn) {
      }
    __syncwarp();
  }
  __device__ uint4 read(int64_t at) const {
    return load_global((const uint4*)(states + ((turn - 1) & 1) * plan.state_bytes + at));
  }
  __device__ void finish() {}
};

// Through the shared memory of the blocks of a cluster.
template <class E>
struct ClusterExchange {
  const Group& group;
  StateLayout<E> layout;
  const Plan& plan = group.plan;
  unsigned char* states = shared_memory() + plan.exchange;
  uint32_t turn = 0;

  __device__ void start() {
    for (int64_t i = threadIdx.x; i < 2 * plan.state_bytes / granule_bytes; i += threads)
      ((uint4*)states)[i] = uint4{0, 0, 0, 0};
    __syncthreads();
    cluster_arrive();
    cluster_wait();
  }
  __device__ void write(int row, int slot, int unit, E value, int state) {
    *(E*)(states + state * plan.state_bytes + layout.at(row, slot, unit)) = value;
  }
  // Hands this block's units of the first `rows` rows to the others, for the first turn of both states.
  __device__ void publish(int rows) {
    __syncthreads();
    const int state = turn & 1;
    const int granules = plan.sizes.units / granule<E>, row_granules = granules * layout.slots;
    for (int i = threadIdx.x; i < rows * row_granules * plan.sizes.blocks; i += threads) {
      const int peer = (i + group.rank) % plan.sizes.blocks, at = i / plan.sizes.blocks;
      const int unit = group.first_unit + at % granules * granule<E>;
      if (peer == group.rank || unit >= layout.chunks / layout.slots * chunk<E>) continue;
      const int64_t offset = layout.at(at / row_granules, at / granules % layout.slots, unit);
      for (int copy = 0; copy < (turn == 0 ? 2 : 1); ++copy) {
        uint4* granule = (uint4*)(states + (turn == 0 ? copy : state) * plan.state_bytes + offset);
        store_peer(granule, peer, *granule);
      }
    }
    ++turn;
    cluster_arrive();
  }
  __device__ void await(int, int) { cluster_wait(); }
  __device__ uint4 read(int64_t at) const {
    return *(const uint4*)(states + ((turn - 1) & 1) * plan.state_bytes + at);
  }
  // No block ends while others still write to it.
  __device__ void finish() { cluster_wait(); }
};

}  // namespace seq2seq_fast
