// Vectors of the instruction set this file is compiled for, and the element types the loop takes.
//
// Which set that is, SF_VECTOR_BYTES tells: 64 AVX-512, 32 AVX2 with FMA, 16 any other. The compiler's own __AVX512F__
// does not follow the pragma of an engine's file before GCC 13.
#pragma once

namespace {

template <class A>
struct VectorOf {
  typedef A type __attribute__((vector_size(SF_VECTOR_BYTES)));
};
template <class A>
using Vec = typename VectorOf<A>::type;
template <class A>
constexpr int lanes = SF_VECTOR_BYTES / sizeof(A);

// An element as it lies in memory: what sums of its products are taken in, and how many are multiplied at once.
template <class E>
struct Element {
  using Sum = E;
  using Group = E;
  static constexpr int group = 1;
};

struct bfloat16 {
  uint16_t bits;
};

template <>
struct Element<bfloat16> {
  using Sum = float;
  using Group = uint32_t;  // two neighbours along the sum
  static constexpr int group = 2;
};

template <class E>
using Sum = typename Element<E>::Sum;

inline int64_t groups(int64_t n, int group) { return (n + group - 1) / group; }

template <class A>
inline Vec<A> load(const A* p) {
  Vec<A> v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

template <class A>
inline void store(A* p, Vec<A> v) {
  __builtin_memcpy(p, &v, sizeof v);
}

// The greater of each lane and a limit; a NaN stays. One instruction, of which the compiler makes two.
template <class V, class A>
inline V at_least(V x, A limit) {
  const V bound = V{} + limit;
#if SF_VECTOR_BYTES == 64
  if constexpr (sizeof(A) == 4) return (V)_mm512_max_ps((__m512)bound, (__m512)x);
  if constexpr (sizeof(A) == 8) return (V)_mm512_max_pd((__m512d)bound, (__m512d)x);
#elif SF_VECTOR_BYTES == 32
  if constexpr (sizeof(A) == 4) return (V)_mm256_max_ps((__m256)bound, (__m256)x);
  if constexpr (sizeof(A) == 8) return (V)_mm256_max_pd((__m256d)bound, (__m256d)x);
#endif
  return x < limit ? bound : x;
}

inline float to_sum(float x) { return x; }
inline double to_sum(double x) { return x; }
inline float to_sum(bfloat16 x) {
  const uint32_t bits = uint32_t(x.bits) << 16;
  float y;
  __builtin_memcpy(&y, &bits, sizeof y);
  return y;
}

template <class E>
inline E from_sum(Sum<E> x) {
  if constexpr (sizeof(E) == sizeof(x)) {
    return x;
  } else {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, sizeof bits);
    if (x != x) return {uint16_t((bits >> 16) | 0x40)};
    return {uint16_t((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)};  // round to nearest, ties to even
  }
}

template <class A>
struct Exchanged {
  Vec<A> low, high;
};

// Trades the lanes of a that have the bit `half` for the lanes of b that have it not: a step of transposing.
template <class A, int half>
inline Exchanged<A> exchange(Vec<A> a, Vec<A> b) {
  constexpr int L = lanes<A>;
  typedef decltype(Vec<A>{} == Vec<A>{}) Lanes;
  Lanes low, high;
#pragma GCC unroll 16
  for (int lane = 0; lane < L; ++lane) {
    low[lane] = lane & half ? L + lane - half : lane;
    high[lane] = lane & half ? L + lane : lane + half;
  }
  return {__builtin_shuffle(a, b, low), __builtin_shuffle(a, b, high)};
}

// Each lane from the one whose number differs in the bit `half`.
template <class A, int half>
inline Vec<A> swap_lanes(Vec<A> x) {
  typedef decltype(Vec<A>{} == Vec<A>{}) Lanes;
  Lanes from;
#pragma GCC unroll 16
  for (int lane = 0; lane < lanes<A>; ++lane) from[lane] = lane ^ half;
  return __builtin_shuffle(x, from);
}

// A mask of the first n < 32 lanes; n may be negative.
inline uint32_t first_bits(int64_t n) { return n > 0 ? (1u << n) - 1 : 0; }

// The first n elements of a row as a vector of sums, zero after them.
template <class E>
inline Vec<Sum<E>> load_some(const E* p, int64_t n) {
  using A = Sum<E>;
  if constexpr (sizeof(E) == sizeof(A)) {
    if (n >= lanes<A>) return load<A>(p);
#if SF_VECTOR_BYTES == 64
    if constexpr (sizeof(A) == 4) return (Vec<A>)_mm512_maskz_loadu_ps(first_bits(n), p);
    if constexpr (sizeof(A) == 8) return (Vec<A>)_mm512_maskz_loadu_pd(first_bits(n), p);
#endif
  }
#ifdef SF_BFLOAT16
  else if (n >= lanes<A>) {
    return (Vec<A>)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16);
  }
#endif
  A values[lanes<A>] = {};
  for (int64_t k = 0; k < n && k < lanes<A>; ++k) values[k] = to_sum(p[k]);
  return load<A>(values);
}

template <class E>
inline void store_some(E* p, Vec<Sum<E>> v, int64_t n) {
  using A = Sum<E>;
  if constexpr (sizeof(E) == sizeof(A)) {
    if (n >= lanes<A>) return store<A>(p, v);
#if SF_VECTOR_BYTES == 64
    if constexpr (sizeof(A) == 4) return _mm512_mask_storeu_ps(p, first_bits(n), (__m512)v);
    if constexpr (sizeof(A) == 8) return _mm512_mask_storeu_pd(p, first_bits(n), (__m512d)v);
#endif
  }
#ifdef SF_BFLOAT16
  else if (n >= lanes<A>) {
    const __m256bh rounded = _mm512_cvtneps_pbh((__m512)v);
    __builtin_memcpy(p, &rounded, sizeof rounded);
    return;
  }
#endif
  A values[lanes<A>];
  store<A>(values, v);
  for (int64_t k = 0; k < n && k < lanes<A>; ++k) p[k] = from_sum<E>(values[k]);
}

}  // namespace
