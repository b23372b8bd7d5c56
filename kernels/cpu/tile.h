// One work item: some query rows of one head against a range of keys.

#ifndef ATTEND_KERNELS_CPU_TILE_H_
#define ATTEND_KERNELS_CPU_TILE_H_

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/config.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/plan.h"

namespace attend::cpu {

// How the CPU cuts work with the kernels of `table`.
PlanRule PlanRuleOf(const KernelTable& table);

// Rows and keys of an item. `head` and rows count as the TaskPlan does: over query heads, or, when
// heads are packed, over kv heads with rows running over (query, head in group).
struct Tile {
  int64_t head = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;  // at most kMaxTileRows more
  int64_t key_begin = 0;
  int64_t key_end = 0;
  int rows() const { return static_cast<int>(row_end - row_begin); }
};

// Rows of tile `index` of `plan`: tiles are cut evenly.
void SetRows(const TaskPlan& plan, int64_t index, Tile* tile);

// Running softmax of a tile's rows in the log2 domain. Owned by a scratch or by partial results.
// Output sums lie strip by strip, each [panels][strip rows][panel].
struct TileState {
  float* maximum = nullptr;  // [rows]
  float* sum = nullptr;      // [rows]
  float* o = nullptr;        // [rows * PaddedColumns]
};

// Strips of a tile: `count` of them, cut evenly.
struct Strips {
  int rows;
  int count;
  int begin(int strip) const {
    return static_cast<int>(static_cast<int64_t>(rows) * strip / count);
  }
};
Strips StripsOf(const KernelTable& table, int rows);

// Columns of an output row with its last panel padded.
int64_t PaddedColumns(const KernelTable& table, int64_t columns);

// Memory of one thread, large enough for any tile of a batch.
class TileScratch {
 public:
  // For tasks up to these head dimensions. False when the host has no memory.
  bool Reserve(const KernelTable& table, int64_t head_dim, int64_t head_dim_v);
  int64_t bytes() const { return buffer_.bytes(); }

  TileState state() { return {maximum_, sum_, o_}; }

 private:
  friend class TileComputation;

  struct PackedBlock {
    float* keys = nullptr;
    float* values = nullptr;
  };

  AlignedBuffer buffer_;
  float* queries_ = nullptr;
  PackedBlock packed_[2];  // the block in use and the next
  float* scores_ = nullptr;
  float* o_ = nullptr;
  alignas(kCacheLine) float maximum_[kMaxTileRows];
  float sum_[kMaxTileRows];
  int64_t visible_begin_[kMaxTileRows];
  int64_t visible_end_[kMaxTileRows];
  bool started_[kMaxTileRows];  // by strip: its output sums hold something
};

// Fills `state` with the tile's keys, from nothing. Sinks are not in it.
void ComputeTile(const KernelTable& table, const AttentionTask& task, const TaskPlan& plan,
                 const Tile& tile, TileScratch* scratch, const TileState& state);

// Computes and writes a tile that sees all of its task's keys.
void RunTile(const KernelTable& table, const AttentionTask& task, const TaskPlan& plan,
             const Tile& tile, TileScratch* scratch);

// Writes output rows and LSE of a strip, or of a tile, whose keys are all in `state`; adds the
// sinks.
void FinishStrip(const KernelTable& table, const AttentionTask& task, const TaskPlan& plan,
                 const Tile& tile, int strip, const TileState& state);
void FinishTile(const KernelTable& table, const AttentionTask& task, const TaskPlan& plan,
                const Tile& tile, const TileState& state);

// Writes the padded rows of a task: zeros, and -infinity for their LSE.
void ClearPadding(const AttentionTask& task);

}  // namespace attend::cpu

#endif  // ATTEND_KERNELS_CPU_TILE_H_
