// Partial results of tasks whose keys are cut into chunks. Whoever finishes the last chunk of a
// tile merges all of them in key order, so the answer does not depend on who that is.

#ifndef ATTEND_KERNELS_CPU_PARTIALS_H_
#define ATTEND_KERNELS_CPU_PARTIALS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "kernels/attention.h"
#include "kernels/cpu/aligned_buffer.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/tile.h"
#include "kernels/plan.h"

namespace attend::cpu {

class Partials {
 public:
  // Room for every chunked task of the batch. False when the host has no memory.
  bool Reserve(const KernelTable& table, absl::Span<const AttentionTask> tasks,
               const BatchPlan& plan);
  int64_t bytes() const { return buffer_.bytes(); }

  // Where chunk `chunk` of tile (head, row tile) of task `index` keeps its state.
  TileState At(const TaskPlan& plan, int64_t index, int64_t tile, int64_t chunk) const;

  // Says that one more chunk of a tile is done; true for the last one. Thread-safe.
  bool Done(const TaskPlan& plan, int64_t index, int64_t tile);

  // Sums the chunks of a tile into `out`. `rows` of the tile.
  void Merge(const KernelTable& table, const TaskPlan& plan, int64_t index, int64_t tile, int rows,
             const TileState& out) const;

 private:
  struct Place {
    int64_t first_float = 0;
    int64_t first_counter = 0;
    int64_t columns = 0;
    int64_t rows = 0;  // of the largest tile, padded
  };

  std::vector<Place> places_;  // by task
  AlignedBuffer buffer_;
  std::unique_ptr<std::atomic<int32_t>[]> done_;
  int64_t counters_ = 0;
};

}  // namespace attend::cpu

#endif  // ATTEND_KERNELS_CPU_PARTIALS_H_
