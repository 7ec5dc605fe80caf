// The elements of weights and states, and their tile of a matrix product.
//
// A granule is 16 bytes of a row or column along the sum; a chunk is four of them, one for each lane of a quad. Which
// element meets which slot of the instruction is free as long as both factors agree, so a chunk feeds two of them.
#pragma once

#include "portable.h"

namespace seq2seq_fast {

constexpr int granule_bytes = 16;

struct BFloat16 {
  uint16_t bits;
  __device__ static BFloat16 of(float x) { return {bfloat16_of_float(x)}; }
  __device__ float value() const { return float_of_bfloat16(bits); }
};

struct Float16 {
  uint16_t bits;
  __device__ static Float16 of(float x) { return {float16_of_float(x)}; }
  __device__ float value() const { return float_of_float16(bits); }
};

struct Float32 {
  float x;
  __device__ static Float32 of(float x) { return {x}; }
  __device__ float value() const { return x; }
};

template <class E>
constexpr int granule = granule_bytes / sizeof(E);
template <class E>
constexpr int chunk = 4 * granule<E>;

// sum += a b for 16 rows, 8 columns and half a chunk. `a` holds the operand's registers in their order: rows 0 to 7 and 8
// to 15 of one word, then of the next (PTX, mma.m16n8k16 and .m16n8k8).
__device__ inline void multiply_add(float (&sum)[4], uint4 a, uint32_t b0, uint32_t b1, bool, BFloat16) {
  mma_bfloat16(sum, a.x, a.y, a.z, a.w, b0, b1);
}

__device__ inline void multiply_add(float (&sum)[4], uint4 a, uint32_t b0, uint32_t b1, bool, Float16) {
  mma_float16(sum, a.x, a.y, a.z, a.w, b0, b1);
}

struct Split {
  uint32_t big, rest;
  __device__ explicit Split(uint32_t bits)
      : big(tf32_of_float(float_of_bits(bits))), rest(tf32_of_float(float_of_bits(bits) - float_of_bits(big))) {}
};

__device__ inline void multiply_add(float (&sum)[4], uint4 a, uint32_t b0, uint32_t b1, bool tf32, Float32) {
  const Split a0(a.x), a1(a.y), a2(a.z), a3(a.w), c0(b0), c1(b1);
  if (!tf32) {
    mma_tf32(sum, a0.rest, a1.rest, a2.rest, a3.rest, c0.big, c1.big);
    mma_tf32(sum, a0.big, a1.big, a2.big, a3.big, c0.rest, c1.rest);
  }
  mma_tf32(sum, a0.big, a1.big, a2.big, a3.big, c0.big, c1.big);
}

}  // namespace seq2seq_fast
