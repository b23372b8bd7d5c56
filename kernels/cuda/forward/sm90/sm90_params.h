// What the Hopper forward kernels read: plain data, uploaded in one copy for a batch.
//
//   Sm90Task     one sequence: tensor maps, mask bounds, scale
//   Sm90Segment  a run of work items in launch order; a device finds its item by binary search
//   Sm90Launch   the kernel's argument
//
// A work item ("tile") is `rows` query rows of one head, or of one group of packed heads, over one
// chunk of the keys.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_PARAMS_H_
#define ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_PARAMS_H_

#include <cuda.h>

#include <cstdint>

namespace attend::cuda::sm90 {

// Lengths and mask bounds are 32-bit on the device and saturate here, so that sums of three of them
// never overflow. The host refuses longer sequences.
inline constexpr int32_t kMaxLength = 1 << 29;

enum TaskFlags : int32_t {
  // Scores need more than one multiply-add before the exponential: scale not a normal positive
  // number, softcap or ALiBi. Such tasks never take the fast step.
  kModifiedScores = 1 << 0,
  // The mask is more than "keys before seqlen_k": V rows that some rows see and some do not exist.
  kMasked = 1 << 1,
  kSinks = 1 << 2,
};

// What a work item takes over from its task, copied as a whole.
struct alignas(16) Sm90Scalars {
  int32_t seqlen_q, seqlen_k, padded_q;
  int32_t rows;  // query rows of a tile (tile rows / pack)
  // Row i sees keys [max(0, i + first_offset), min(seqlen_k, i + end_offset)).
  int32_t first_offset, end_offset;
  int32_t heads_q;
  int32_t pack;          // query heads that share a tile's rows: row r is (r / pack, r % pack)
  int32_t heads_per_kv;  // groups of packed heads for each kv head
  int32_t chunk_origin;  // first key of the first chunk
  int32_t chunk_keys;    // keys of a chunk; chunks == 1: all
  int32_t chunks;
  int32_t head_dim_v;
  int32_t q_bytes;  // of one panel of Q as loaded
  int32_t flags;
  int32_t unused;
  float exponent_scale;  // log2(e) * softmax_scale, or log2(e) with kModifiedScores
  float logit_scale;     // turns a row maximum into natural-log units: softmax_scale or 1
  float softmax_scale;
  float softcap;
  float* lse;  // [heads_q, padded_q] or null
  int64_t lse_head_stride;
};

struct alignas(128) Sm90Task : Sm90Scalars {
  CUtensorMap q;  // {columns, packed heads, rows, groups of packed heads}
  CUtensorMap k;  // {columns, rows, heads}; ends at seqlen_k, so that rows beyond it read as 0
  CUtensorMap v;
  CUtensorMap o;  // {columns, rows, heads}; ends at padded_q

  void* o_pointer;
  float* partial_o;    // [chunks, heads_q, padded_q, head_dim_v] fp32, when chunks > 1
  float* partial_lse;  // [chunks, heads_q, padded_q]
  const float* alibi_slopes;
  const float* sinks;
  int64_t o_row_stride, o_head_stride;  // elements
};

// Items [first_item, next segment's first_item) of `tasks` tasks of one shape.
struct Sm90Segment {
  int32_t first_item;
  int32_t first_task;
  int32_t tasks;
  int32_t first_head;  // in units of packed heads
  int32_t heads;       // of each task
  int32_t row_tiles;
  int32_t chunks;
  int32_t rows_inner;  // 1: neighbours are row tiles of one head (dense); 0: the longest row tiles
                       // of all heads first (causal)
};

struct Sm90Launch {
  const Sm90Task* tasks;
  const Sm90Segment* segments;
  Sm90Segment only;    // segments[0] when there is one: read without going to memory
  int32_t* next_item;  // [2], 0 at launch; blocks draw items from the first
  uint32_t* poison;    // [blocks, rows of a tile, head_dim_v / 32]: see sm90_inspect.cuh
  int32_t segment_count;
  int32_t first_task, task_count;  // those of the launch
  int32_t items;
  uint32_t zero;         // 0, unknown to the compiler
  int32_t fixed_stride;  // 1: block b runs items b, b + grid, ... (all items cost the same)
};

// Rows of outputs that are merged from chunks.
struct Sm90Merge {
  const Sm90Task* tasks;
  const int32_t* task_index;  // [count]
  const int64_t* first_row;   // [count + 1], rows = heads_q * padded_q
  int32_t count;
};

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_PARAMS_H_
