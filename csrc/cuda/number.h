// One hidden unit as the cells of csrc/cells take it: a float, with sigmoid and tanh from the GPU's own 2^x and 1/x.
#pragma once

#include "portable.h"

namespace seq2seq_fast {

struct Number {
  float value;
  Number() = default;
  __device__ Number(float value) : value(value) {}
};

__device__ inline Number operator+(Number a, Number b) { return a.value + b.value; }
__device__ inline Number operator-(Number a, Number b) { return a.value - b.value; }
__device__ inline Number operator*(Number a, Number b) { return a.value * b.value; }
__device__ inline bool operator<(Number a, Number b) { return a.value < b.value; }
__device__ inline bool operator>(Number a, Number b) { return a.value > b.value; }

constexpr float log2e = 1.44269504088896341f;

// Errors of about 1e-7: a twentieth of what csrc/cells/activations.h takes in instructions, and no division.
__device__ inline Number sigmoid(Number x) { return reciprocal_approximate(1 + exp2_approximate(-log2e * x.value)); }

// Near zero the polynomial of csrc/cells/activations.h; beyond, 1 - 2 e / (1 + e), e = e^-2|x|.
__device__ inline Number tanh(Number x) {
  const float size = x.value < 0 ? -x.value : x.value, z = size * size;
  const float e = exp2_approximate(-2 * log2e * size);
  float p = z * -5.70498872745e-3f + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float y = size < 0.625f ? p * z * size + size : 1 - 2 * e * reciprocal_approximate(1 + e);
  return x.value < 0 ? -y : y;
}

}  // namespace seq2seq_fast
