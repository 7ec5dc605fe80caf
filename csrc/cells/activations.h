// Sigmoid and tanh for a vector of lanes, accurate to about one unit in the last place at any magnitude.
//
// Both rest on e^x = 2^n e^r with n = round(x / ln 2) and |r| <= ln(2)/2, kept as the pair (2^n, e^r - 1).
// Constants: for float a minimax fit of (e^r - 1 - r) / r^2 (relative error of e^r - 1: 1.4e-8) and Cephes tanhf, for
// double the Taylor series. What includes this gives at_least(x, limit), the greater of the two, or NaN if x is.
#pragma once

#include <cstdint>
#include <type_traits>

#ifdef __CUDACC__
#define SF_HOST_DEVICE __host__ __device__
#else
#define SF_HOST_DEVICE
#endif

namespace {

// What the maths needs to know of a lane type.
template <class A>
struct Lane;

template <>
struct Lane<float> {
  using Int = int32_t;
  static constexpr float log2e = 1.44269504088896341f;
  static constexpr float ln2_high = 0.693359375f;
  static constexpr float ln2_low = -2.12194440e-4f;
  static constexpr float round = 12582912.0f;  // 1.5 * 2^23: adding it leaves round(x) in the low bits
  static constexpr Int one = 0x3F800000;
  static constexpr Int sign = Int(1) << 31;
  static constexpr int mantissa = 23;
  static constexpr float limit = 43.0f;  // sigmoid and tanh are 0, 1 or -1 to within 1e-18 beyond it
  static constexpr int terms = 5;
  static constexpr float series[terms] = {1.3946497347e-3f, 8.3666108549e-3f, 4.1666280478e-2f, 1.6666543484e-1f, 0.5f};
};

template <>
struct Lane<double> {
  using Int = int64_t;
  static constexpr double log2e = 1.4426950408889634074;
  static constexpr double ln2_high = 6.93145751953125e-1;
  static constexpr double ln2_low = 1.42860682030941723212e-6;
  static constexpr double round = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr Int one = 0x3FF0000000000000;
  static constexpr Int sign = Int(1) << 63;
  static constexpr int mantissa = 52;
  static constexpr double limit = 340.0;
  static constexpr int terms = 12;
  static constexpr double series[terms] = {1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800,
                                           1.0 / 362880,     1.0 / 40320,     1.0 / 5040,     1.0 / 720,
                                           1.0 / 120,        1.0 / 24,        1.0 / 6,        1.0 / 2};
};

template <class V>
struct Vector {
  using A = std::remove_cv_t<std::remove_reference_t<decltype(V{}[0])>>;
  using L = Lane<A>;
  typedef typename L::Int Int __attribute__((vector_size(sizeof(V))));
};

template <class V>
struct Exponential {
  V power;      // 2^n
  V remainder;  // e^r - 1
};

// For |x| <= 2 * limit, or NaN, which stays NaN.
template <class V>
inline Exponential<V> exponential(V x) {
  using L = typename Vector<V>::L;
  using Int = typename Vector<V>::Int;
  const V shifted = x * L::log2e + L::round;
  const V n = shifted - L::round;
  const V r = (x - n * L::ln2_high) - n * L::ln2_low;
  V p = r * L::series[0] + L::series[1];
#pragma GCC unroll 16
  for (int k = 2; k < L::terms; ++k) p = p * r + L::series[k];
  const Int power = ((Int)shifted << L::mantissa) + L::one;
  return {(V)power, p * (r * r) + r};
}

// 1 / (1 + e^-x)
template <class V>
inline V sigmoid(V x) {
  using L = typename Vector<V>::L;
  const auto e = exponential(at_least(-at_least(x, -2 * L::limit), -L::limit));
  return 1 / ((e.power + 1) + e.power * e.remainder);
}

// Near zero x + x^3 P(x^2), for double (1 - e) / (1 + e) with 1 - e free of cancellation; beyond, 1 - 2 e / (1 + e),
// whose error is that of its last rounding; e = e^-2|x|. The sign is that of x.
template <class V>
inline V tanh(V x) {
  using L = typename Vector<V>::L;
  using Int = typename Vector<V>::Int;
  const Int sign = (Int)x & L::sign;
  const V size = (V)((Int)x ^ sign);
  const auto [power, remainder] = exponential(at_least(-2 * size, -L::limit));
  const V e = power + power * remainder;
  V result;
  if constexpr (std::is_same_v<typename Vector<V>::A, float>) {
    const V z = x * x;
    V p = z * -5.70498872745e-3f + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    result = size < 0.625f ? p * z * size + size : 1 - 2 * e / (1 + e);
  } else {
    const V one_less = -(power * remainder + (power - 1));  // 1 - e
    const auto small = size < 0.5;
    const V quotient = (small ? one_less : 2 * e) / (1 + e);
    result = small ? quotient : 1 - quotient;
  }
  return (V)((Int)result | sign);
}

}  // namespace
