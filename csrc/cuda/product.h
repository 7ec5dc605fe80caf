// The product of the state with this block's part of weight_hh, which stays on the chip for all steps.
#pragma once

#include "elements.h"
#include "group.h"

namespace seq2seq_fast {

// Where element (row, slot, unit) of a state lies, in bytes: as the instruction wants it of the lanes of a warp, 16 bytes
// each, in two halves of a chunk.
template <class E, int slots>
struct StateLayout {
  int chunks;

  __device__ int chunk_at(int row_tile, int c) const { return (row_tile * chunks + c) * 2 * fragment_bytes; }
  __device__ int at(int row, int slot, int unit) const {
    const int in_tile = row % tile_rows, in_granule = unit % granule<E> * int(sizeof(E));
    const int lane = in_tile % 8 * 4 + unit % chunk<E> / granule<E>, word = in_granule / 4;
    return chunk_at(row / tile_rows, unit / chunk<E> * slots + slot) + word / 2 * fragment_bytes +
           lane * granule_bytes + (word % 2 * 2 + in_tile / 8) * 4 + in_granule % 4;
  }
};

// What one warp holds: for its tile of units and its part of the sum, `columns` fragments of 8 columns a chunk.
template <class E, int columns, int slots>
struct Product {
  static constexpr int in_registers = chunks_in_registers(columns, sizeof(E) == 4);
  static constexpr int ahead = 2;  // chunks of the state on their way

  const Plan& plan;
  bool tf32;
  StateLayout<E, slots> layout{plan.chunks};
  int lane = int(threadIdx.x) % 32;
  int warp = int(threadIdx.x) / 32;
  int unit_tile = warp % plan.unit_tiles;
  int part = warp / plan.unit_tiles;
  int begin = part * plan.part_chunks;
  int end = begin + plan.part_chunks < plan.chunks ? begin + plan.part_chunks : plan.chunks;
  uint4 resident[in_registers][columns] = {};
  uint4* extra = (uint4*)shared_memory() + warp * plan.extra * columns * 32 + lane;

  // weight(column, slot, unit of the sum, unit of the block) is an element.
  template <class Weight>
  __device__ void load(Weight weight) {
    const auto fragment = [&](int c, int column) {
      union {
        uint4 all;
        E each[granule<E>];
      } values;
#pragma unroll
      for (int k = 0; k < granule<E>; ++k)
        values.each[k] = weight(column, c % slots, c / slots * chunk<E> + lane % 4 * granule<E> + k,
                                unit_tile * tile_units + lane / 4);
      return values.all;
    };
    // a loop, since in line this would be most of the kernel
    constexpr int together = columns == 1 ? 4 : 1;
#pragma unroll 1
    for (int first = 0; first < in_registers; first += together) {
      uint4 loaded[together][columns];
#pragma unroll
      for (int n = 0; n < together; ++n)
#pragma unroll
        for (int column = 0; column < columns; ++column)
          loaded[n][column] = begin + first + n < end ? fragment(begin + first + n, column) : uint4{0, 0, 0, 0};
#pragma unroll
      for (int i = 0; i < in_registers; ++i)
        if (i / together * together == first)
#pragma unroll
          for (int column = 0; column < columns; ++column) resident[i][column] = loaded[i % together][column];
    }
#pragma unroll 1
    for (int i = 0; begin + in_registers + i < end; ++i)
#pragma unroll
      for (int column = 0; column < columns; ++column)
        extra[(i * columns + column) * 32] = fragment(begin + in_registers + i, column);
  }

  // Of 16 rows, or with `two` of 32. read(bytes) is a granule of the state.
  template <class Read>
  __device__ void multiply(Read read, int row_tile, bool two, float (&sums)[2][columns][4]) const {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int column = 0; column < columns; ++column)
#pragma unroll
        for (int e = 0; e < 4; ++e) sums[m][column][e] = 0;
    const int at = layout.chunk_at(row_tile, begin) + lane * granule_bytes, tile_bytes = layout.chunk_at(1, 0);
    const auto rows = [&](int m, int half, int i) {
      return read(at + m * tile_bytes + (2 * i + half) * fragment_bytes);
    };
    const auto multiply = [&](const uint4(&a)[2][2], const auto& fragment) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const RowOperand<E> first(a[0][half]), second(a[1][half]);
#pragma unroll
        for (int column = 0; column < columns; ++column) {
          const uint4 b = fragment(column);
          const ColumnOperand<E> words(half ? b.z : b.x, half ? b.w : b.y);
          multiply_add(sums[0][column], first, words, tf32);
          if (two) multiply_add(sums[1][column], second, words, tf32);
        }
      }
    };
#pragma unroll
    for (int i = 0; i < in_registers; i += ahead) {
      if (begin + i >= end) break;
      uint4 a[ahead][2][2] = {};
#pragma unroll
      for (int n = 0; n < ahead; ++n)
        if (n == 0 || begin + i + n < end)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            a[n][0][half] = rows(0, half, i + n);
            if (two) a[n][1][half] = rows(1, half, i + n);
          }
#pragma unroll
      for (int n = 0; n < ahead; ++n)
        if (n == 0 || begin + i + n < end) multiply(a[n], [&](int column) { return resident[i + n][column]; });
    }
#pragma unroll 1
    for (int i = 0; begin + in_registers + i < end; ++i) {
      uint4 a[2][2] = {};
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        a[0][half] = rows(0, half, in_registers + i);
        if (two) a[1][half] = rows(1, half, in_registers + i);
      }
      multiply(a, [&](int column) { return extra[(i * columns + column) * 32]; });
    }
  }
};

// The parts of the sums of all warps in shared memory, as the lanes hold them.
template <int columns>
struct Partials {
  const Plan& plan;
  float4* memory = (float4*)(shared_memory() + plan.partials);

  __device__ int at(int warp, int m, int column, int lane) const {
    return ((warp * (plan.rows_a_turn / tile_rows) + m) * columns + column) * 32 + lane;
  }
  __device__ void write(int warp, int lane, bool two, const float (&sums)[2][columns][4]) const {
#pragma unroll
    for (int m = 0; m < 2; ++m)
      if (m == 0 || two)
#pragma unroll
        for (int column = 0; column < columns; ++column)
          memory[at(warp, m, column, lane)] =
              float4{sums[m][column][0], sums[m][column][1], sums[m][column][2], sums[m][column][3]};
  }
  // The whole sum of (row of the turn, unit of the block).
  __device__ float sum(int row, int column, int unit) const {
    const int in_tile = row % tile_rows, n = unit % tile_units;
    const int lane = in_tile % 8 * 4 + n / 2, element = in_tile / 8 * 2 + n % 2;
    float total = 0;
    for (int part = 0; part < plan.parts; ++part)
      total += ((
          const float*)&memory[at(part * plan.unit_tiles + unit / tile_units, row / tile_rows, column, lane)])[element];
    return total;
  }
};

}  // namespace seq2seq_fast
