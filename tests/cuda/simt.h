// A CPU that stands in for the GPU: what csrc/cuda/portable.h gives the kernels, with every CUDA thread a fibre.
//
// All blocks are there at once, on one thread of the operating system, so barriers, flags, clusters and the lanes of a
// matrix instruction meet as they do on a GPU. It finds wrong indices, missing barriers and deadlocks; it can't find a
// missing fence, a wrong instruction or what a GPU's limits would refuse. A seed starves some blocks, warps and threads
// for a while, so that an order of events that only luck would give does not pass.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#define __global__
#define __device__
#define __launch_bounds__(...)
#define __grid_constant__

struct uint4 {
  uint32_t x, y, z, w;
};
struct float4 {
  float x, y, z, w;
};

namespace simt {

struct Index {
  unsigned x;
};

struct Barrier {
  int arrived = 0, expected = 0;
  unsigned generation = 0;
};

struct Block;
struct Warp {
  Barrier barrier;
  bool awake = true;
  uint32_t lanes[32][8];
};
struct Cluster {
  Barrier barrier;
  std::vector<Block*> blocks;
};
struct Block {
  Index index;
  Barrier barrier;
  std::vector<Warp> warps;
  unsigned char* shared;
  Cluster* cluster;
  int running;  // threads that have not ended
  bool started = false, awake = true;
};

struct Fibre {
  void* stack_pointer;
  Index thread;
  Block* block;
  const char* where = "the start";
  unsigned cluster_generation = 0;
  bool done = false;
};

inline Fibre* current = nullptr;
inline void* scheduler = nullptr;
inline std::function<void()>* kernel = nullptr;
inline uint64_t progress = 0;
inline std::exception_ptr failure;

// Saves the registers that a call keeps and the stack, and takes up another's (System V, x86-64).
extern "C" void simt_switch(void** from, void* to);
asm(R"(.text
.weak simt_switch
simt_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi); movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp; ret
)");
constexpr size_t stack_bytes = 64 << 10;

inline void yield() { simt_switch(&current->stack_pointer, scheduler); }

inline void entry() {
  try {
    (*kernel)();
  } catch (...) {
    failure = std::current_exception();
  }
  current->done = true;
  ++progress;
  for (;;) yield();
}

inline unsigned arrive(Barrier& barrier) {
  ++progress;
  const unsigned generation = barrier.generation;
  if (++barrier.arrived == barrier.expected) {
    barrier.arrived = 0;
    ++barrier.generation;
  }
  return generation;
}
inline void wait(Barrier& barrier, unsigned generation, const char* where) {
  current->where = where;
  while (barrier.generation == generation) yield();
  ++progress;
  current->where = "running";
}
inline void sync(Barrier& barrier, const char* where) { wait(barrier, arrive(barrier), where); }

inline Warp& warp() { return current->block->warps[current->thread.x / 32]; }
inline int lane() { return int(current->thread.x % 32); }

// Runs `run` as every thread of every block. seed 0: in order, 1: in reverse, from 2 on: unfair.
inline void launch(int blocks, int threads, int cluster, size_t shared_bytes, unsigned seed,
                   std::function<void()> run) {
  kernel = &run;
  failure = nullptr;
  std::vector<Block> grid(blocks);
  std::vector<Cluster> clusters(blocks / cluster);
  std::vector<Fibre> fibres(size_t(blocks) * threads);
  char* stacks = (char*)mmap(nullptr, fibres.size() * stack_bytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stacks == MAP_FAILED) throw std::runtime_error("no memory for the stacks");
  for (int b = 0; b < blocks; ++b) {
    Block& block = grid[b];
    block.index = {unsigned(b)};
    block.barrier.expected = block.running = threads;
    block.shared = (unsigned char*)std::aligned_alloc(128, (shared_bytes + 127) / 128 * 128);
    std::memset(block.shared, 0xff, shared_bytes);  // NaN in every dtype
    block.warps.resize(threads / 32);
    for (Warp& warp : block.warps) warp.barrier.expected = 32;
    block.cluster = &clusters[b / cluster];
    block.cluster->blocks.push_back(&block);
    block.cluster->barrier.expected += threads;
    for (int t = 0; t < threads; ++t) {
      const size_t i = size_t(b) * threads + t;
      fibres[i].thread = {unsigned(t)};
      fibres[i].block = &block;
      // what simt_switch takes up: six registers, where to go on, and a stack aligned as after a call
      void** stack = (void**)(stacks + (i + 1) * stack_bytes) - 1;
      *--stack = (void*)entry;
      fibres[i].stack_pointer = stack - 6;
    }
  }
  std::vector<Fibre*> order;
  for (Fibre& fibre : fibres) order.push_back(&fibre);
  std::mt19937 random(seed);
  const bool unfair = seed > 1;
  const unsigned patience = 4u << seed % 3 * 3;
  if (seed == 1) std::reverse(order.begin(), order.end());
  if (unfair) std::shuffle(order.begin(), order.end(), random);
  size_t left = fibres.size();
  uint64_t seen = progress;
  for (unsigned idle = 0; left && !failure; idle = progress == seen ? idle + 1 : 0, seen = progress) {
    if (idle > 1000 * (unfair ? patience : 1)) {
      for (const Fibre& fibre : fibres)
        if (!fibre.done && !failure)
          failure = std::make_exception_ptr(
              std::runtime_error("deadlock: block " + std::to_string(fibre.block->index.x) + ", thread " +
                                 std::to_string(fibre.thread.x) + " waits at " + fibre.where));
      break;
    }
    if (unfair)
      for (Block& block : grid) {
        if (random() % patience == 0) block.awake = random() % 3 == 0;
        if (Warp& warp = block.warps[random() % block.warps.size()]; random() % 4 == 0) warp.awake = !warp.awake;
      }
    for (Fibre* fibre : order) {
      const bool held_up = unfair && (!fibre->block->awake || !fibre->block->warps[fibre->thread.x / 32].awake);
      if (fibre->done || held_up || (unfair && random() % 8 == 0)) continue;
      current = fibre;
      fibre->block->started = true;
      simt_switch(&scheduler, fibre->stack_pointer);
      if (fibre->done) --left, --fibre->block->running;
      if (failure) break;
    }
  }
  for (Block& block : grid) std::free(block.shared);
  munmap(stacks, fibres.size() * stack_bytes);
  if (failure) std::rethrow_exception(failure);
}

}  // namespace simt

#define threadIdx (simt::current->thread)
#define blockIdx (simt::current->block->index)

inline void __syncthreads() { simt::sync(simt::current->block->barrier, "__syncthreads"); }
inline void __syncwarp() { simt::sync(simt::warp().barrier, "__syncwarp"); }

namespace seq2seq_fast {

constexpr bool has_clusters = true;

inline unsigned char* shared_memory() { return simt::current->block->shared; }

inline void store_release(uint32_t* flag, uint32_t value) {
  *flag = value;
  ++simt::progress;
}
inline uint32_t load_acquire(const uint32_t* flag) {
  simt::current->where = "a flag";
  simt::yield();
  return *(const volatile uint32_t*)flag;
}
inline uint4 load_global(const uint4* p) { return *p; }

inline void store_peer(uint4* p, uint32_t rank, uint4 value) {
  simt::Block* here = simt::current->block;
  simt::Block* peer = here->cluster->blocks.at(rank);
  if (!peer->started || !peer->running)
    throw std::runtime_error("shared memory of a block that has not begun, or has ended");
  *(uint4*)(peer->shared + ((unsigned char*)p - here->shared)) = value;
}
inline void cluster_arrive() {
  simt::current->cluster_generation = simt::arrive(simt::current->block->cluster->barrier);
}
inline void cluster_wait() {
  simt::wait(simt::current->block->cluster->barrier, simt::current->cluster_generation, "the cluster's barrier");
}

inline float exp2_approximate(float x) { return std::exp2(x); }
inline float reciprocal_approximate(float x) { return 1 / x; }

inline float float_of_bits(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline uint32_t bits_of_float(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}
inline float float_of_bfloat16(uint16_t bits) { return float_of_bits(uint32_t(bits) << 16); }
inline uint16_t bfloat16_of_float(float x) {
  const uint32_t bits = bits_of_float(x);
  return x != x ? 0x7fff : uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float float_of_float16(uint16_t bits) {
  _Float16 x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}
inline uint16_t float16_of_float(float x) {
  const _Float16 half = _Float16(x);
  uint16_t bits;
  std::memcpy(&bits, &half, sizeof bits);
  return bits;
}
inline uint32_t tf32_of_float(float x) { return x != x ? 0x7fffffff : (bits_of_float(x) + 0x1000) & ~0x1fffu; }

// mma.m16n8kN, each operand register of `per_register` values: the lanes hand each other their registers, as laid out
// in the PTX manual.
template <int per_register, class Value>
void mma(float (&d)[4], const uint32_t (&operands)[6], Value value) {
  simt::Warp& warp = simt::warp();
  const int lane = simt::lane();
  std::memcpy(warp.lanes[lane], operands, sizeof operands);
  simt::sync(warp.barrier, "mma.sync");
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
    for (int k = 0; k < 8 * per_register; ++k) {
      const int half = k / (4 * per_register), quad = k / per_register % 4, at = k % per_register;
      d[e] += value(warp.lanes[row % 8 * 4 + quad][row / 8 + 2 * half], at) *
              value(warp.lanes[column * 4 + quad][4 + half], at);
    }
  }
  simt::sync(warp.barrier, "mma.sync");
}
inline void mma_bfloat16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  mma<2>(d, {a0, a1, a2, a3, b0, b1}, [](uint32_t v, int at) { return float_of_bfloat16(uint16_t(v >> 16 * at)); });
}
inline void mma_float16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  mma<2>(d, {a0, a1, a2, a3, b0, b1}, [](uint32_t v, int at) { return float_of_float16(uint16_t(v >> 16 * at)); });
}
// The instruction takes the upper 19 bits of its factors.
inline void mma_tf32(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  mma<1>(d, {a0, a1, a2, a3, b0, b1}, [](uint32_t v, int) { return float_of_bits(v & ~0x1fffu); });
}

}  // namespace seq2seq_fast
