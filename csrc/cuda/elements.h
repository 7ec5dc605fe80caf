// The elements of weights and states, and their tile of a matrix product.
//
// A granule is 16 bytes of a row or column along the sum; a chunk is four of them, one for each lane of a quad. Which
// element meets which slot of the instruction is free as long as both factors agree, so a chunk feeds two of them.
#pragma once

#include <type_traits>

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

// A word of float32, as two of TF32.
struct Split {
  uint32_t big, rest;
  Split() = default;
  __device__ explicit Split(uint32_t bits)
      : big(tf32_of_float(float_of_bits(bits))), rest(tf32_of_float(float_of_bits(bits) - float_of_bits(big))) {}
};
template <class E>
using Word = std::conditional_t<std::is_same_v<E, Float32>, Split, uint32_t>;

// The operands of one instruction, half a chunk. Of 16 rows: rows 0 to 7 and 8 to 15 of one word, then of the next; of 8
// columns: one word, then the next (PTX, mma.m16n8k16 and .m16n8k8).
template <class E>
struct RowOperand {
  Word<E> a[4];
  __device__ explicit RowOperand(uint4 v) : a{Word<E>(v.x), Word<E>(v.y), Word<E>(v.z), Word<E>(v.w)} {}
};
template <class E>
struct ColumnOperand {
  Word<E> b[2];
  __device__ ColumnOperand(uint32_t b0, uint32_t b1) : b{Word<E>(b0), Word<E>(b1)} {}
};

__device__ inline void multiply_add(float (&sum)[4], const RowOperand<BFloat16>& r, const ColumnOperand<BFloat16>& c,
                                    bool) {
  mma_bfloat16(sum, r.a[0], r.a[1], r.a[2], r.a[3], c.b[0], c.b[1]);
}

__device__ inline void multiply_add(float (&sum)[4], const RowOperand<Float16>& r, const ColumnOperand<Float16>& c,
                                    bool) {
  mma_float16(sum, r.a[0], r.a[1], r.a[2], r.a[3], c.b[0], c.b[1]);
}

// Without `tf32` the small products too, but for that of the two rests. The instruction cuts what it adds up, so the sum
// over many of them is taken outside.
__device__ inline void multiply_add(float (&sum)[4], const RowOperand<Float32>& r, const ColumnOperand<Float32>& c,
                                    bool tf32) {
  float here[4] = {0, 0, 0, 0};
  if (!tf32) {
    mma_tf32(here, r.a[0].rest, r.a[1].rest, r.a[2].rest, r.a[3].rest, c.b[0].big, c.b[1].big);
    mma_tf32(here, r.a[0].big, r.a[1].big, r.a[2].big, r.a[3].big, c.b[0].rest, c.b[1].rest);
  }
  mma_tf32(here, r.a[0].big, r.a[1].big, r.a[2].big, r.a[3].big, c.b[0].big, c.b[1].big);
#pragma unroll
  for (int e = 0; e < 4; ++e) sum[e] += here[e];
}

}  // namespace seq2seq_fast
