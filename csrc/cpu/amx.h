// Products of bfloat16 on the matrix unit of a processor with AMX: tile.h's multiply for whole groups of 16.
//
// A tile register holds 16 rows of 64 bytes: 16 rows of 16 sums, 16 rows of 16 groups of a, or 16 groups of 16 columns of
// b, which lie in a panel as they are wanted. Two blocks of rows share what is read of b.
#pragma once

#include "simd.h"

namespace {

namespace amx {

constexpr int tile_rows = 16;
constexpr int tile_groups = 16;
constexpr int row_bytes = 64;
constexpr int ahead = 256;  // groups of b that are fetched out of the third-level cache before their use
constexpr int least_rows = 4;  // fewer are as fast in vectors

template <int T>
inline void load(const void* from, int64_t stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(T), "r"(from), "r"(stride) : "memory");
}
// The same, past the first-level cache.
template <int T>
inline void load_once(const void* from, int64_t stride) {
  asm volatile("tileloaddt1 (%1,%2,1), %%tmm%c0" : : "i"(T), "r"(from), "r"(stride) : "memory");
}
template <int T>
inline void store(void* to, int64_t stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(T), "r"(to), "r"(stride) : "memory");
}
// sums += a b
template <int sums, int a, int b>
inline void multiply_add() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(sums), "i"(a), "i"(b));
}

// The rows of a block as this thread's registers are set for; 0: they are not.
inline thread_local int rows_set = 0;

// While it lives, the registers are ours; other libraries set them for themselves.
struct Registers {
  Registers() { rows_set = 0; }
  ~Registers() {
    if (rows_set) asm volatile("tilerelease");
    rows_set = 0;
  }
};

// Sums and a have `rows` rows, b has all.
inline void set_rows(int rows) {
  if (rows == rows_set) return;
  alignas(64) uint8_t setting[64] = {1};
  for (int t = 0; t < 8; ++t) {
    reinterpret_cast<uint16_t*>(setting + 16)[t] = row_bytes;
    setting[48 + t] = uint8_t(t >= 6 ? tile_rows : rows);
  }
  asm volatile("ldtilecfg %0" : : "m"(setting));
  rows_set = rows;
}

// Where the tile of a block of rows at a group lies.
struct Rows {
  const char* const* row;
  int count;
  int64_t stride;  // from one row to the next; 0: they are not evenly spaced, and are copied
  alignas(64) char copied[2][tile_rows][row_bytes];

  Rows(const void* const* rows, int count) : row((const char* const*)rows), count(count) {
    stride = count > 1 ? row[1] - row[0] : row_bytes;
    for (int m = 2; m < count && stride; ++m)
      if (row[m] - row[m - 1] != stride) stride = 0;
  }

  template <int T>
  void load(int64_t k) {
    const int64_t at = k * int64_t(sizeof(uint32_t));
    if (stride) return amx::load<T>(row[0] + at, stride);
    // the tile before may still be on its way
    auto& copy = copied[k / tile_groups % 2];
    for (int m = 0; m < count; ++m) __builtin_memcpy(copy[m], row[m] + at, row_bytes);
    amx::load<T>(copy, row_bytes);
  }
};

// `blocks` blocks of rows times N vectors of columns. K: groups along the sum, a multiple of 16. ld_b: bytes, of a group.
template <int blocks, int N>
void product(int64_t K, Rows* a, const char* b, int64_t ld_b, float* const* c, int64_t ld_c) {
  // sums are in the registers from 0 on, rows of a in 4 and 5, columns of b in 6 and 7
  static_assert(blocks * N <= 4 && blocks <= 2);
  const auto sums = [](auto each) {
    each(std::integral_constant<int, 0>{});
    if constexpr (blocks * N > 1) each(std::integral_constant<int, 1>{});
    if constexpr (blocks * N > 2) each(std::integral_constant<int, 2>{});
    if constexpr (blocks * N > 3) each(std::integral_constant<int, 3>{});
  };
  // Where all of a and b leave the first-level cache, a is to stay: LSTM(512, 512), T 20, B 128 takes 8.9 ms so and 9.9
  // without, LSTM(256, 256), T 50, B 64, which does not leave it, 3.8 without and 4.0 so (Sapphire Rapids).
  const bool once = K > 128;
  sums([&](auto s) { load<s.value>(c[s.value % blocks] + s.value / blocks * tile_groups, ld_c * 4); });
  for (int64_t k = 0; k < K; k += tile_groups) {
    const char* const columns = b + k * ld_b;
    for (int g = 0; g < tile_groups; ++g)
      for (int n = 0; n < N; ++n) __builtin_prefetch(columns + (ahead + g) * ld_b + n * row_bytes, 0, 2);
    a[0].template load<4>(k);
    if constexpr (blocks == 2) a[1].template load<5>(k);
    sums([&](auto s) {
      constexpr int n = s.value / blocks, block = s.value % blocks;
      if constexpr (block == 0)
        once ? load_once<6 + n % 2>(columns + n * row_bytes, ld_b) : load<6 + n % 2>(columns + n * row_bytes, ld_b);
      multiply_add<s.value, 4 + block, 6 + n % 2>();
    });
  }
  sums([&](auto s) { store<s.value>(c[s.value % blocks] + s.value / blocks * tile_groups, ld_c * 4); });
}

// c[m][:] (+)= sum_k a(m)[k] b[k][:] for up to 32 rows and 4 vectors, and for as many of the K groups as make whole tiles;
// returns how many. The rest as for tile.h's multiply.
inline int64_t multiply(int rows, int vectors, int64_t K, const bfloat16* const* a, const bfloat16* b, int64_t ld_b,
                        float* c, int64_t ld_c, const float* init, bool add) {
  K -= K % tile_groups;
  if (!K) return 0;
  for (int m = 0; m < rows && (init || !add); ++m)
    for (int n = 0; n < vectors; ++n) {
      float* const at = c + m * ld_c + n * tile_groups;
      Vec<float> first = init ? ::load<float>(init + n * tile_groups) : Vec<float>{};
      if (add) first += ::load<float>(at);
      ::store<float>(at, first);
    }
  // the second block ends with the last row, and may begin with rows of the first: both find the same sums for them
  const int blocks = rows > tile_rows ? 2 : 1, count = (rows + blocks - 1) / blocks, second = rows - count;
  set_rows(count);
  Rows both[2] = {{(const void* const*)a, count}, {(const void* const*)a + second, count}};
  for (int n = 0; n < vectors;) {
    const int left = vectors - n, here = blocks == 2 ? std::min(left, 2) : left;
    float* const sums[] = {c + n * tile_groups, c + second * ld_c + n * tile_groups};
    const auto kernel = blocks == 2 ? here == 2 ? product<2, 2> : product<2, 1>
                        : here == 1 ? product<1, 1>
                        : here == 2 ? product<1, 2>
                        : here == 3 ? product<1, 3>
                                    : product<1, 4>;
    kernel(K, both, (const char*)b + n * row_bytes, ld_b * int64_t(sizeof(bfloat16)), sums, ld_c);
    n += here;
  }
  return K;
}

}  // namespace amx

}  // namespace
