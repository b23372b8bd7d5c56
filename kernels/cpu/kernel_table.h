// What the driver asks of an instruction set: a table of functions and their arguments.
//
// Plain data only. Files compiled for wider instruction sets include this header, so an inline
// function here could be emitted with instructions that the host lacks and then be chosen by the
// linker for everyone.
//
// "Word" below: 32 bits that one multiply-add consumes, either one fp32 number or a pair of bf16.
// Packed operands are arrays of words, typed float.

#ifndef ATTEND_KERNELS_CPU_KERNEL_TABLE_H_
#define ATTEND_KERNELS_CPU_KERNEL_TABLE_H_

#include <cstdint>

#include "kernels/cpu/config.h"

namespace attend::cpu {

// Storage types. Values of DType, in its order.
struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};
enum StorageIndex : int { kStorageF32 = 0, kStorageF16 = 1, kStorageBF16 = 2, kStorageCount = 3 };

// Everything about scores beyond scale and mask. Pointers are per row of the strip.
struct ScoreOptions {
  float scale;
  float softcap;            // 0: off
  const float* slopes;      // null: no ALiBi
  const float* positions;   // position of the row's query minus the block's first key
  const void* const* bias;  // at the block's first key; null: none
  StorageIndex bias_type;
};

// Rows to bring into L2 while a strip computes: `rows` of them, `bytes` each, `stride` bytes apart.
struct FetchRows {
  const void* data;
  int64_t stride;
  int bytes;
  int rows;
};
inline constexpr int kMostFetches = 4;

// One strip of query rows against one block of keys: scores, online softmax, values.
struct StripArgs {
  int rows;     // 1 to strip_rows
  int columns;  // head_dim_v
  int depth;    // packed: words of a packed query; in place: head_dim

  const float* q;  // packed: [depth][rows]; in place: [rows][stream_stride], zero padded
  int stream_stride;
  const void* k;     // packed: panels [depth][panel]; in place: the block's first key row
  const void* v;     // packed: panels [key_block / pack][panel]; in place: the first value row
  int64_t k_stride;  // in place only, elements
  int64_t v_stride;

  // Visible keys of each row, relative to the block; [begin, end) is their union, not empty.
  const int* row_begin;
  const int* row_end;
  int begin;
  int end;
  int block_keys;  // keys that exist from the block's start on, at most key_block

  float post_scale;             // multiplies packed pair products; 1 when folded into q
  const ScoreOptions* options;  // null: scores are final after scaling

  // State of the rows: running maximum and sum (log2 domain), and output sums laid out
  // [ceil(columns / panel)][rows][panel]. `first`: `o` holds nothing yet.
  bool first;
  float* maximum;
  float* sum;
  float* o;

  const FetchRows* fetches;  // packed only
  int fetch_count;

  float* scores;  // [strip_rows][key_block + kScorePadding]
};

struct PackQueriesArgs {
  const void* const* rows;  // `count` rows of `head_dim` elements
  int count;
  int head_dim;
  float scale;
  float* out;  // room for [depth][count] plus one vector
};

struct PackRowsArgs {
  const void* data;  // first row of the block
  int64_t stride;    // elements
  int begin;         // rows to pack, relative to the block; begin is a multiple of the panel
  int end;
  int columns;
  float* out;  // the whole block's buffer
};

struct FinishArgs {
  const float* o;  // as in StripArgs
  int rows;
  int columns;
  const float* factors;  // output = o * factor, or exact zeros when `empty`
  const bool* empty;
  void* const* out;
};

struct DTypeKernels {
  int pack;  // elements of one word
  void (*pack_queries)(const PackQueriesArgs&);
  void (*stream_queries)(const PackQueriesArgs&, int stream_stride);
  void (*pack_keys)(const PackRowsArgs&);
  void (*pack_values)(const PackRowsArgs&);
  void (*strip)(const StripArgs&);         // packed operands
  void (*stream_strip)(const StripArgs&);  // K and V in place
  void (*finish)(const FinishArgs&);
};

struct KernelTable {
  const char* kernel_name;  // for metrics: "cpu_avx2"
  int lanes;
  int strip_rows;
  int panel;      // columns of the micro-kernel: two vectors
  int key_block;  // keys of one block
  bool flushes_subnormal_pairs;
  DTypeKernels dtypes[kStorageCount];
};

}  // namespace attend::cpu

#endif  // ATTEND_KERNELS_CPU_KERNEL_TABLE_H_
