// The elements of weights and states, and their tile of a matrix product.
//
// A granule is the 16 bytes one lane holds of a row; the four granules of a chunk lie side by side along the sum. Which
// element meets which slot of the instruction is free as long as both factors agree, so a granule feeds two of them.
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

// sum += a b for 16 rows, 8 columns and a chunk: `low` holds rows 0 to 7, `high` 8 to 15 (PTX, mma.m16n8k16 and .m16n8k8).
__device__ inline void multiply_add(float (&sum)[4], uint4 low, uint4 high, uint4 b, bool, BFloat16) {
  mma_bfloat16(sum, low.x, high.x, low.y, high.y, b.x, b.y);
  mma_bfloat16(sum, low.z, high.z, low.w, high.w, b.z, b.w);
}

__device__ inline void multiply_add(float (&sum)[4], uint4 low, uint4 high, uint4 b, bool, Float16) {
  mma_float16(sum, low.x, high.x, low.y, high.y, b.x, b.y);
  mma_float16(sum, low.z, high.z, low.w, high.w, b.z, b.w);
}

struct Split {
  uint32_t big, rest;
  __device__ explicit Split(uint32_t bits)
      : big(tf32_of_float(float_of_bits(bits))), rest(tf32_of_float(float_of_bits(bits) - float_of_bits(big))) {}
};

__device__ inline void multiply_add(float (&sum)[4], Split a0, Split a1, Split a2, Split a3, Split b0, Split b1,
                                    bool tf32) {
  if (!tf32) {
    mma_tf32(sum, a0.rest, a1.rest, a2.rest, a3.rest, b0.big, b1.big);
    mma_tf32(sum, a0.big, a1.big, a2.big, a3.big, b0.rest, b1.rest);
  }
  mma_tf32(sum, a0.big, a1.big, a2.big, a3.big, b0.big, b1.big);
}

__device__ inline void multiply_add(float (&sum)[4], uint4 low, uint4 high, uint4 b, bool tf32, Float32) {
  multiply_add(sum, Split(low.x), Split(high.x), Split(low.y), Split(high.y), Split(b.x), Split(b.y), tf32);
  multiply_add(sum, Split(low.z), Split(high.z), Split(low.w), Split(high.w), Split(b.z), Split(b.w), tf32);
}

}  // namespace seq2seq_fast
