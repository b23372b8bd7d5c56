// Runs batches on the cores of the host.

#ifndef ATTEND_KERNELS_CPU_CPU_EXECUTOR_H_
#define ATTEND_KERNELS_CPU_CPU_EXECUTOR_H_

#include <chrono>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/partials.h"
#include "kernels/cpu/tile.h"
#include "kernels/plan.h"
#include "oneapi/tbb/task_arena.h"

namespace attend::cpu {

// Keeps its memory from batch to batch. Every item is computed by one thread from its task alone,
// so neither the number of threads nor who takes which item changes a bit of the answer.
class CpuExecutor final : public Executor {
 public:
  // `table` must outlive the executor. Times are reported since `epoch`.
  CpuExecutor(const KernelTable& table, int threads, std::chrono::steady_clock::time_point epoch);

  absl::Status Run(const AttentionBatch& batch, BatchReport* report) override;

 private:
  absl::Status Prepare(absl::Span<const AttentionTask> tasks);
  // Fewer and larger tiles where there are plenty.
  void MergeTiles();
  void RunItems(absl::Span<const AttentionTask> tasks);
  void RunItem(absl::Span<const AttentionTask> tasks, int64_t item, TileScratch* scratch);
  double SecondsSinceEpoch() const;

  const KernelTable& table_;
  const PlanRule rule_;
  const std::chrono::steady_clock::time_point epoch_;
  const int threads_;
  oneapi::tbb::task_arena arena_;
  std::vector<TileScratch> scratches_;  // by thread of the arena
  BatchPlan plan_;
  Partials partials_;
  std::vector<int32_t> padded_;  // tasks with padded rows
};

}  // namespace attend::cpu

#endif  // ATTEND_KERNELS_CPU_CPU_EXECUTOR_H_
