// Cutting tasks into tiles and chunks, choosing each task's kernel, and the order of a batch.
// Host code. What a task's tiles and chunks are depends on that task alone.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_PLAN_H_
#define ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/attention.h"
#include "kernels/cuda/forward/sm90/sm90_launch.h"
#include "kernels/cuda/forward/sm90/sm90_params.h"

namespace attend::cuda::sm90 {

// Which pair of native head sizes holds a task's: part of its variant.
enum class HeadTile : uint32_t { k64, k96, k128, k192x128, k192, k256 };
HeadTile HeadTileOf(const AttentionTask& task);

// The kernels of a head tile, in the order in which a batch launches them.
enum class TileKind : uint32_t { kLong, kShort, kModified, kDecode };
inline constexpr int kTileKinds = 4;

const Sm90Kernel& KernelOf(HeadTile head_tile, TileKind kind, bool bf16);

// How one task is cut.
struct Sm90TaskPlan {
  TileKind kind = TileKind::kShort;
  bool masked = false;    // rows differ in the keys they see
  bool modified = false;  // scores need more than a multiply-add before the exponential
  int32_t first_offset = 0, end_offset = 0;  // as in Sm90Task
  int32_t pack = 1;
  int32_t rows = 0;       // query rows of a tile
  int64_t heads = 0;      // groups of packed heads
  int64_t row_tiles = 0;  // over padded_q
  int64_t chunks = 1;
  int64_t chunk_origin = 0, chunk_keys = kMaxLength;
  double item_cost = 0;  // mean visible pairs of an item, for ordering only
  int64_t items() const { return heads * row_tiles * chunks; }
};

Sm90TaskPlan PlanSm90Task(const AttentionTask& task);

// One launch of a batch: the tasks of one kernel.
struct Sm90Part {
  TileKind kind = TileKind::kShort;
  int32_t first_segment = 0;
  int32_t segments = 0;
  int64_t items = 0;
  bool equal_items = true;  // all cost the same
};

// A batch in launch order. Reuses its memory from batch to batch.
struct Sm90BatchPlan {
  std::vector<Sm90TaskPlan> tasks;    // by task index
  std::vector<int32_t> order;         // task indices: by kernel, then costliest items first
  std::vector<Sm90Segment> segments;  // tasks named by their place in `order`
  std::vector<Sm90Part> parts;

  struct Key {
    uint32_t kind;
    int32_t task;
    double cost;  // negated: the costliest first
  };
  std::vector<Key> keys;  // what `order` is sorted by
};

// REQUIRES: all tasks have one head tile and dtype, and fewer than 2^31 items.
void PlanSm90Batch(absl::Span<const AttentionTask> tasks, Sm90BatchPlan* plan);

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_PLAN_H_
