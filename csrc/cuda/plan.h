// How a launch splits the work, as host arithmetic.
//
// A block owns 8, 16, 32 or 64 hidden units with all their gates. Its eight warps share the product with the state: each
// takes one tile of 8 units and a part of the sum. So a warp's weights are its own: 24 fragments of 8 columns by 64 bytes
// of the sum stay in 96 of its 255 registers, 98 KB a block, the rest in shared memory. GRU, H 1024, bfloat16: 128 blocks
// of 8 units, 12 fragments a warp. A cluster of 16 at H 512: 32 units, 24 fragments.
#pragma once

#include "loop.h"

namespace seq2seq_fast {

constexpr int warps = 8;
constexpr int threads = 32 * warps;
constexpr int tile_units = 8;
constexpr int tile_rows = 16;
constexpr int elements = 4;  // of a tile, that a thread computes
constexpr int fragment_bytes = 512;
constexpr int64_t alignment = 256;

struct Plan {
  LoopPlan sizes;
  int unit_tiles;  // of a block
  int parts;  // that the sum is split in
  int rows;  // of the batch, of the largest group
  int rows_a_turn;  // 16 or 32
  int chunks;  // of the sum
  int part_chunks;  // of a part
  int extra;  // chunks of a part that are in shared memory
  int64_t state_bytes;  // of the exchanged state; there are two

  // where things lie in shared memory, in bytes
  int partials, state, exchange;
};

constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Of a group: one word for each block, the number of states it has handed out.
constexpr int64_t flag_bytes(int blocks) {
  return divide_up(blocks * int64_t(sizeof(uint32_t)), alignment) * alignment;
}

// The chunks of a part whose fragments stay in registers: what the sums and the elements leave of 255, without a spill.
constexpr int chunks_in_registers(int columns, bool float32) {
  return columns == 1 ? 20 : columns == 3 ? (float32 ? 4 : 6) : (float32 ? 2 : 4);
}

// The fragments of a chunk, for one tile of units: a column for each gate, going back just one of the state's.
constexpr int columns_of(Cell cell, bool backward) { return backward ? 1 : int(gates_of(cell)); }
// The parts of the sum for each hidden unit.
constexpr int slots_of(Cell cell, bool backward) { return backward ? int(gates_of(cell)) : 1; }

inline Plan plan_of(const Loop& loop, LoopForm form, bool backward, int unit_tiles, int groups) {
  const int columns = columns_of(loop.cell, backward), slots = slots_of(loop.cell, backward);
  const int64_t chunk_units = loop.dtype == LoopDtype::float32 ? 16 : 32;
  Plan plan{};
  plan.unit_tiles = unit_tiles;
  plan.parts = warps / unit_tiles;
  plan.rows = int(divide_up(loop.batch, groups));
  plan.rows_a_turn = unit_tiles == warps ? tile_rows : 2 * tile_rows;
  plan.chunks = int(divide_up(loop.hidden_size, chunk_units)) * slots;
  plan.part_chunks = int(divide_up(plan.chunks, plan.parts));
  const int in_registers = chunks_in_registers(columns, loop.dtype == LoopDtype::float32);
  plan.extra = plan.part_chunks > in_registers ? plan.part_chunks - in_registers : 0;
  plan.state_bytes = divide_up(plan.rows, tile_rows) * plan.chunks * 2 * fragment_bytes;
  plan.sizes.units = unit_tiles * tile_units;
  plan.sizes.groups = groups;
  plan.sizes.blocks = int(divide_up(loop.hidden_size, plan.sizes.units));

  int64_t at = int64_t(warps) * plan.extra * columns * fragment_bytes;
  plan.partials = int(at);
  at += int64_t(warps) * plan.rows_a_turn * columns * tile_units * int64_t(sizeof(float));
  plan.state = int(at);
  at += int64_t(plan.rows) * plan.sizes.units * (loop.cell == Cell::lstm ? 2 : 1) * int64_t(sizeof(float));
  at = divide_up(at, alignment) * alignment;
  plan.exchange = int(at);
  if (form == LoopForm::cluster) {
    at += 2 * plan.state_bytes;
  } else {
    plan.sizes.workspace = loop.directions * groups * (flag_bytes(plan.sizes.blocks) + 2 * plan.state_bytes);
  }
  plan.sizes.shared_memory = at > INT32_MAX ? INT32_MAX : int(at);
  return plan;
}

// The grid form takes the fewest units a block that the device has room for: weights are spread widest, and what is left
// of the device takes other rows of the batch. The cluster form does so too as long as all rows fit beside each other,
// and beyond that takes smaller clusters.
inline LoopStatus choose(const Loop& loop, LoopForm form, bool backward, const LoopLimits& limits, Plan& plan) {
  if (form == LoopForm::cluster && limits.cluster < 2) return LoopStatus::not_supported;
  const int sms = loop.max_sms > 0 && loop.max_sms < limits.sms ? loop.max_sms : limits.sms;
  const int64_t row_tiles = divide_up(loop.batch, tile_rows);
  LoopStatus status = LoopStatus::too_many_blocks;
  for (int unit_tiles = 1; unit_tiles <= warps; unit_tiles *= 2) {
    const int64_t blocks = divide_up(loop.hidden_size, unit_tiles * tile_units),
                  room = sms / (blocks * loop.directions);
    if (room < 1 || (form == LoopForm::cluster && blocks > limits.cluster)) continue;
    const Plan tried = plan_of(loop, form, backward, unit_tiles, int(room < row_tiles ? room : row_tiles));
    if (tried.sizes.shared_memory > limits.shared_memory || tried.state_bytes > INT32_MAX) {
      if (status != LoopStatus::ok) status = LoopStatus::too_large;
      continue;
    }
    plan = tried;
    status = LoopStatus::ok;
    if (form == LoopForm::grid || room >= row_tiles) break;
  }
  return status;
}

}  // namespace seq2seq_fast
