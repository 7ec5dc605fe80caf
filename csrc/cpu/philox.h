// Philox 4x32-10 for a vector of counters: Salmon et al., SC 2011; reference_attention.philox is its twin.
#pragma once

#include "simd.h"

namespace {

using Words = Vec<uint32_t>;

struct WordProduct {
  Words high, low;
};

inline WordProduct multiply_words(Words a, uint32_t b) {
#if SF_VECTOR_BYTES == 64
  const __m512i x = (__m512i)a, m = _mm512_set1_epi64(b);
  const __m512i even = _mm512_mul_epu32(x, m), odd = _mm512_mul_epu32(_mm512_srli_epi64(x, 32), m);
  return {(Words)_mm512_mask_blend_epi32(0xAAAA, _mm512_srli_epi64(even, 32), odd),
          (Words)_mm512_mask_blend_epi32(0xAAAA, even, _mm512_slli_epi64(odd, 32))};
#elif SF_VECTOR_BYTES == 32
  const __m256i x = (__m256i)a, m = _mm256_set1_epi64x(b);
  const __m256i even = _mm256_mul_epu32(x, m), odd = _mm256_mul_epu32(_mm256_srli_epi64(x, 32), m);
  return {(Words)_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xAA),
          (Words)_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xAA)};
#else
  WordProduct product;
  for (int lane = 0; lane < lanes<uint32_t>; ++lane) {
    const uint64_t both = uint64_t(a[lane]) * b;
    product.high[lane] = uint32_t(both >> 32);
    product.low[lane] = uint32_t(both);
  }
  return product;
#endif
}

// Words of the counters (first + lane, row, head, 0), in the order of the weights that take them: 4 for each lane.
inline void philox_words(uint64_t seed, uint32_t first, uint32_t row, uint32_t head, uint32_t* words) {
  constexpr int L = lanes<uint32_t>;
  Words c[4] = {Words{} + first, Words{} + row, Words{} + head, Words{}};
  for (int lane = 0; lane < L; ++lane) c[0][lane] += uint32_t(lane);
  uint32_t key[2] = {uint32_t(seed), uint32_t(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    const auto [high_0, low_0] = multiply_words(c[0], 0xD2511F53);
    const auto [high_1, low_1] = multiply_words(c[2], 0xCD9E8D57);
    c[0] = high_1 ^ c[1] ^ key[0];
    c[1] = low_1;
    c[2] = high_0 ^ c[3] ^ key[1];
    c[3] = low_0;
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  // lane by lane the four words side by side: two rounds of zipping
  Words zip_low, zip_high;
  for (int lane = 0; lane < L; ++lane) {
    zip_low[lane] = uint32_t(lane / 2 + (lane & 1 ? L : 0));
    zip_high[lane] = uint32_t(L / 2 + lane / 2 + (lane & 1 ? L : 0));
  }
  const Words even[] = {__builtin_shuffle(c[0], c[2], zip_low), __builtin_shuffle(c[0], c[2], zip_high)};
  const Words odd[] = {__builtin_shuffle(c[1], c[3], zip_low), __builtin_shuffle(c[1], c[3], zip_high)};
  for (int half = 0; half < 2; ++half) {
    store<uint32_t>(words + 2 * half * L, __builtin_shuffle(even[half], odd[half], zip_low));
    store<uint32_t>(words + (2 * half + 1) * L, __builtin_shuffle(even[half], odd[half], zip_high));
  }
}

}  // namespace
