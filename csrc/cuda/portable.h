// What the kernels ask of the machine: here for nvcc, in tests/cuda/simt.h for a CPU that stands in for the GPU.
#pragma once

#include <cstdint>

#ifdef __CUDACC__

#include <cuda_runtime.h>

namespace seq2seq_fast {

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool has_clusters = false;
#else
constexpr bool has_clusters = true;
#endif

__device__ inline unsigned char* shared_memory() {
  extern __shared__ __align__(128) unsigned char memory[];
  return memory;
}

// A flag that another block waits on. The release covers what the block wrote before a barrier before it.
__device__ inline void store_release(uint32_t* flag, uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
__device__ inline uint32_t load_acquire(const uint32_t* flag) {
  uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}

// Past the first-level cache, which other multiprocessors' writes do not reach.
__device__ inline uint4 load_global(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}

// To where `p`, in this block's shared memory, lies in that of block `rank` of the cluster.
__device__ inline void store_peer(uint4* p, uint32_t rank, uint4 v) {
#if __CUDA_ARCH__ >= 900
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(uint32_t(__cvta_generic_to_shared(p))), "r"(rank));
  asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
#endif
}
__device__ inline void cluster_arrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ inline void cluster_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

__device__ inline float exp2_approximate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float reciprocal_approximate(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline float float_of_bfloat16(uint16_t bits) { return __uint_as_float(uint32_t(bits) << 16); }
__device__ inline uint16_t bfloat16_of_float(float x) {
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
__device__ inline float float_of_float16(uint16_t bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
__device__ inline uint16_t float16_of_float(float x) {
  uint16_t bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
// Rounded to the nearest of 11 bits.
__device__ inline uint32_t tf32_of_float(float x) {
  uint32_t bits;
  // volatile: done again at every step; kept, the parts of all weights would not fit the registers
  asm volatile("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
}
__device__ inline float float_of_bits(uint32_t bits) { return __uint_as_float(bits); }

#define SF_MMA(name, shape)                                                                                   \
  __device__ inline void name(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, \
                              uint32_t b1) {                                                                  \
    asm("mma.sync.aligned." shape " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"          \
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                      \
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));                                              \
  }
SF_MMA(mma_bfloat16, "m16n8k16.row.col.f32.bf16.bf16.f32")
SF_MMA(mma_float16, "m16n8k16.row.col.f32.f16.f16.f32")
SF_MMA(mma_tf32, "m16n8k8.row.col.f32.tf32.tf32.f32")
#undef SF_MMA

}  // namespace seq2seq_fast

#else
#include "simt.h"
#endif
