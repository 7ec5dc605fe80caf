// The time loop on a GPU: what it takes and its C interface. No torch. The twin of recurrence.h's Layer for the CPU.
//
// The caller multiplies the inputs of all steps with weight_ih before the loop, and after backward takes the gradients
// of the weights, biases and input from d_gates. All pointers are to device memory, allocated and kept by the caller.
#pragma once

#include "../recurrence.h"

namespace seq2seq_fast {

enum class LoopDtype : int32_t { float32, bfloat16, float16 };

// How the blocks that share a state exchange it.
enum class LoopForm : int32_t {
  grid,     // through global memory, in a cooperative launch; sm_80 and later
  cluster,  // through distributed shared memory; sm_90 and later
};

enum class LoopStatus : int32_t {
  ok,
  bad_argument,        // a size below zero, a missing pointer, an unknown cell, dtype or form
  no_workspace,        // `workspace` holds fewer bytes than the plan asks
  not_supported,       // the device has no such form
  too_large,           // one block's share of weight_hh and of the state is more than its shared memory
  too_many_blocks,     // the blocks that must run at the same time do not all fit the device, or max_sms
  launch_failed,       // CUDA said no; loop_error has its words
};

// One direction of a layer. "Row" is a row of the input: row `by_step[t] + by_row[i]` is batch row i at step t.
// Matrices are row-major, in the layer's dtype unless said otherwise; gates in torch.nn's order.
struct LoopDirection {
  const void* x_gates;    // (rows, G*H), rows `x_stride` elements apart: W_ih x + b_ih
  const void* weight_hh;  // (G*H, H), contiguous
  const void* bias_hh;    // (G*H), or null
  const void* h_0;        // (batch, H), contiguous, or null for zeros
  const void* c_0;        // likewise; LSTM only
  void* output;           // (rows, H), rows `output_stride` elements apart; forward writes it
  void* h_n;              // (batch, H), contiguous; forward writes it
  void* c_n;              // likewise; LSTM only
  // (rows, slots, padded(H)) of float: h', for the LSTM c', then what the cell saves (csrc/cells); forward writes it,
  // backward reads it. Null for inference.
  float* reserve;

  // backward only
  const void* d_output;  // (rows, H), rows `output_stride` elements apart, or null for zeros
  const void* d_h_n;  // (batch, H), contiguous, or null for zeros
  const void* d_c_n;  // likewise; LSTM only
  void* d_gates;  // (rows, d_slots, H), contiguous, written: the slots of csrc/cells, for GRU [n_x r z n_h]
  void* d_h_0;  // (batch, H), contiguous, written, or null
  void* d_c_0;  // likewise; LSTM only

  int64_t x_stride;
  int64_t output_stride;
  int32_t reverse;  // 0 or 1: from the last step to the first
  int32_t unused;
};

// Rows that do not run at a step are neither read nor written: whoever has padding fills output, and d_gates, with
// zeros beforehand. h_n, c_n, d_h_0 and d_c_0 are written for every row of the batch.
struct Loop {
  Cell cell;
  LoopDtype dtype;  // sums and the state are float
  int32_t tf32;  // float32 only. 1: factors rounded to TF32; 0: three products of TF32, near float32
  int32_t directions;  // 1 or 2, side by side in one launch
  int64_t hidden_size;
  int64_t steps;
  int64_t batch;  // ordered longest row first, so that the rows that run at a step are the first ones
  const int64_t* active;  // (steps), how many rows run at step t; never increases
  const int64_t* by_step;  // (steps), the first row of step t: for a PackedSequence the sum of `active` before it
  const int64_t* by_row;  // (batch), added to it for row i; null for i
  const int64_t* hx_row;  // (batch), where row i lies in a state; null for i
  LoopDirection direction[2];
  void* workspace;  // plan.workspace bytes, aligned to 256; nothing is kept in it between calls
  int64_t workspace_size;  // bytes
  int32_t max_sms;  // leave the other multiprocessors alone; 0: all may be taken
  int32_t unused;
};

// What of a device a plan depends on.
struct LoopLimits {
  int32_t sms;
  int32_t shared_memory;  // bytes a block may ask for
  int32_t cluster;  // most blocks of a cluster; 1 below sm_90
  int32_t unused;
};

// How a launch would split the work: `groups` of `blocks` blocks, each group one direction of some rows of the batch.
struct LoopPlan {
  int32_t groups;  // of one direction
  int32_t blocks;  // of a group, each the owner of `units` hidden units
  int32_t units;
  int32_t shared_memory;  // bytes a block takes
  int64_t workspace;  // bytes
};

}  // namespace seq2seq_fast

extern "C" {
// The limits of CUDA device `device`.
seq2seq_fast::LoopStatus loop_limits(int32_t device, seq2seq_fast::LoopLimits* limits);

// Host arithmetic alone: reads the sizes of `loop`, none of its pointers.
seq2seq_fast::LoopStatus loop_plan(const seq2seq_fast::Loop* loop, seq2seq_fast::LoopForm form, int32_t backward,
                                   const seq2seq_fast::LoopLimits* limits, seq2seq_fast::LoopPlan* plan);

// Launch on `stream` (a cudaStream_t) of the current device, and return at once; may be captured in a graph.
// Where the blocks would not all run at the same time, nothing is launched and the status says so.
seq2seq_fast::LoopStatus loop_forward(const seq2seq_fast::Loop* loop, seq2seq_fast::LoopForm form, void* stream);
seq2seq_fast::LoopStatus loop_backward(const seq2seq_fast::Loop* loop, seq2seq_fast::LoopForm form, void* stream);

// What a status means, in words; for launch_failed with CUDA's own of the last call of this thread.
const char* loop_error(seq2seq_fast::LoopStatus status);
}
