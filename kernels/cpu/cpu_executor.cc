#include "kernels/cpu/cpu_executor.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <new>

#include "oneapi/tbb/parallel_for.h"
#include "oneapi/tbb/partitioner.h"

namespace attend::cpu {

CpuExecutor::CpuExecutor(const KernelTable& table, int threads,
                         std::chrono::steady_clock::time_point epoch)
    : table_(table),
      rule_(PlanRuleOf(table)),
      epoch_(epoch),
      threads_(threads),
      arena_(threads),
      scratches_(static_cast<size_t>(threads)) {
  arena_.initialize();
}

double CpuExecutor::SecondsSinceEpoch() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - epoch_).count();
}

absl::Status CpuExecutor::Run(const AttentionBatch& batch, BatchReport* report) {
  *report = BatchReport();
  report->kernel.begin_seconds = SecondsSinceEpoch();
  report->kernel.end_seconds = report->kernel.begin_seconds;
  if (absl::Status status = Prepare(batch.tasks); !status.ok()) return status;
  RunItems(batch.tasks);
  report->kernel.end_seconds = SecondsSinceEpoch();
  report->copy_in.begin_seconds = report->copy_in.end_seconds = report->kernel.begin_seconds;
  report->copy_out.begin_seconds = report->copy_out.end_seconds = report->kernel.end_seconds;
  report->workspace_bytes = partials_.bytes();
  for (const TileScratch& scratch : scratches_) report->workspace_bytes += scratch.bytes();
  report->launches.push_back({table_.kernel_name, 1});
  return absl::OkStatus();
}

absl::Status CpuExecutor::Prepare(absl::Span<const AttentionTask> tasks) {
  int64_t head_dim = 0;
  int64_t head_dim_v = 0;
  bool enough = true;
  try {
    PlanBatch(tasks, rule_, &plan_);
    MergeTiles();
    padded_.clear();
    for (size_t i = 0; i < tasks.size(); ++i) {
      head_dim = std::max(head_dim, tasks[i].head_dim());
      head_dim_v = std::max(head_dim_v, tasks[i].head_dim_v());
      if (tasks[i].padded_q() > tasks[i].seqlen_q) padded_.push_back(static_cast<int32_t>(i));
    }
    enough = partials_.Reserve(table_, tasks, plan_);
  } catch (const std::bad_alloc&) {
    enough = false;
  }
  for (TileScratch& scratch : scratches_) {
    enough = enough && scratch.Reserve(table_, head_dim, head_dim_v);
  }
  if (!enough) return absl::ResourceExhaustedError("cpu: no memory for the batch's workspace");
  return absl::OkStatus();
}

void CpuExecutor::MergeTiles() {
  const int64_t factor = std::clamp<int64_t>(plan_.items() / (int64_t{kItemsAThread} * threads_), 1,
                                             kMaxTileRows / kTileRows);
  if (factor == 1) return;
  int64_t items = 0;
  for (size_t place = 0; place < plan_.order.size(); ++place) {
    TaskPlan& task = plan_.tasks[static_cast<size_t>(plan_.order[place])];
    // Partial results are laid out by the tiles as they are.
    if (task.chunks == 1) task.row_tiles = (task.row_tiles + factor - 1) / factor;
    plan_.first_item[place] = items;
    items += task.items();
  }
  plan_.first_item.back() = items;
}

void CpuExecutor::RunItems(absl::Span<const AttentionTask> tasks) {
  const int64_t items = plan_.items();
  const int64_t units = items + static_cast<int64_t>(padded_.size());
  std::atomic<int64_t> next{0};
  // Each thread takes the next unit, longest items first, so the threads end together.
  const auto work = [&] {
    const int slot = std::max(0, oneapi::tbb::this_task_arena::current_thread_index());
    TileScratch* scratch = &scratches_[static_cast<size_t>(slot)];
    for (int64_t unit; (unit = next.fetch_add(1, std::memory_order_relaxed)) < units;) {
      if (unit < items) {
        RunItem(tasks, unit, scratch);
      } else {
        ClearPadding(tasks[static_cast<size_t>(padded_[static_cast<size_t>(unit - items)])]);
      }
    }
  };
  const int workers = static_cast<int>(std::min<int64_t>(threads_, units));
  arena_.execute([&] {
    if (workers <= 1) {
      work();
    } else {
      oneapi::tbb::parallel_for(
          0, workers, [&](int) { work(); }, oneapi::tbb::simple_partitioner());
    }
  });
}

void CpuExecutor::RunItem(absl::Span<const AttentionTask> tasks, int64_t item,
                          TileScratch* scratch) {
  const auto after = std::upper_bound(plan_.first_item.begin(), plan_.first_item.end(), item);
  const auto place = static_cast<size_t>(after - plan_.first_item.begin()) - 1;
  const int32_t index = plan_.order[place];
  const AttentionTask& task = tasks[static_cast<size_t>(index)];
  const TaskPlan& plan = plan_.tasks[static_cast<size_t>(index)];

  // Heads outermost, so that threads share K and V; the last row tile, which sees most keys when
  // the mask is causal, first.
  const int64_t local = item - plan_.first_item[place];
  const int64_t chunk = local % plan.chunks;
  const int64_t tile_index = local / plan.chunks;
  Tile tile;
  tile.head = tile_index / plan.row_tiles;
  SetRows(plan, plan.row_tiles - 1 - tile_index % plan.row_tiles, &tile);
  tile.key_begin = chunk * plan.chunk_keys;
  tile.key_end = std::min(tile.key_begin + plan.chunk_keys, task.seqlen_k);

  if (plan.chunks == 1) {
    RunTile(table_, task, plan, tile, scratch);
    return;
  }
  ComputeTile(table_, task, plan, tile, scratch, partials_.At(plan, index, tile_index, chunk));
  if (partials_.Done(plan, index, tile_index)) {
    const TileState state = scratch->state();
    partials_.Merge(table_, plan, index, tile_index, tile.rows(), state);
    FinishTile(table_, task, plan, tile, state);
  }
}

}  // namespace attend::cpu
