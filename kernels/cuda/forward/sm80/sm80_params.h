// What the portable forward kernels read: plain data, uploaded in one copy for a batch.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_PARAMS_H_
#define ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_PARAMS_H_

#include <cstdint>

#include "kernels/cuda/forward/device_task.h"

namespace attend::cuda::sm80 {

// One task and its plan. Item `n` of a task is chunk n % chunks of row tile
// row_tiles - 1 - n / chunks % row_tiles of head n / chunks / row_tiles: heads that share K and V
// are neighbours, and under a causal mask the longest row tile of a head comes first.
struct TaskParams {
  DeviceTask task;  // q, k, v point to repacked copies where they needed one
  int64_t rows;     // of each head: seqlen_q, times `group` when packed
  int64_t chunk_keys;
  // Partial results when chunks > 1: O [heads_q, seqlen_q, chunks, head_dim_v], normalised, and
  // log2-sum-exp2 [heads_q, seqlen_q, chunks].
  float* partial_o;
  float* partial_lse;
  int32_t group;         // query heads in one tile: row r is query r / group, head r % group of it
  int32_t heads_per_kv;  // heads (as counted by items) that share a kv head
  int32_t row_tiles;
  int32_t chunks;
};

// The argument of a kernel that works on items: block b does item first + b.
struct ItemLaunch {
  const TaskParams* tasks;    // in launch order
  const int64_t* first_item;  // [task_count + 1], prefix sums
  int32_t task_count;
  int64_t first;
};

// The kernels below work on vectors, one (row, head) of a tensor at a time; warp n of a launch does
// vector n. `first` [count + 1] are prefix sums of each table row's vectors.

// One tensor to copy into rows of `padded` columns; the added ones become 0.
struct RepackParams {
  const void* from;
  void* to;  // [rows, heads, padded]
  int64_t row_stride, head_stride;
  int32_t heads, columns, padded;
  int32_t element_bytes;
};
struct RepackLaunch {
  const RepackParams* tensors;
  const int64_t* first;  // vectors: rows * heads
  int32_t count;
};

// Merging the chunks of the rows of some tasks (vectors: heads_q * seqlen_q), or writing the padded
// rows of some (vectors: heads_q * (padded_q - seqlen_q)).
struct RowLaunch {
  const TaskParams* tasks;
  const int32_t* index;  // [count], into tasks
  const int64_t* first;
  int32_t count;
};

}  // namespace attend::cuda::sm80

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_PARAMS_H_
