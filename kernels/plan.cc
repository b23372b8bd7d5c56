#include "kernels/plan.h"

#include <algorithm>
#include <numeric>

namespace attend {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// Work of one item in arbitrary units: rows times the keys it will visit. The mask's own pairs
// would be exact; an item's share of them is what matters, and the mean is enough for ordering.
double ItemCost(const AttentionTask& task, const TaskPlan& plan) {
  if (plan.items() == 0) return 0;
  const double pairs = static_cast<double>(VisiblePairs(task.mask, task.seqlen_q, task.seqlen_k)) *
                       static_cast<double>(task.heads_q());
  return pairs * static_cast<double>(task.head_dim() + task.head_dim_v()) /
         static_cast<double>(plan.items());
}

}  // namespace

TaskPlan PlanTask(const AttentionTask& task, const PlanRule& rule) {
  const int64_t group = task.heads_k() == 0 ? 1 : task.heads_q() / task.heads_k();
  TaskPlan plan;
  plan.packed = group > 1 && task.seqlen_q <= rule.pack_rows;
  plan.heads = plan.packed ? task.heads_k() : task.heads_q();
  plan.rows = plan.packed ? task.seqlen_q * group : task.seqlen_q;
  plan.row_tiles = CeilDiv(plan.rows, rule.tile_rows);
  plan.chunks = 1;
  plan.chunk_keys = std::max<int64_t>(task.seqlen_k, 1);
  const int64_t tiles = plan.heads * plan.row_tiles;
  if (tiles > 0 && tiles < rule.enough_items && task.seqlen_k > rule.min_chunk_keys) {
    const int64_t wanted =
        std::min(CeilDiv(rule.enough_items, tiles), task.seqlen_k / rule.min_chunk_keys);
    plan.chunk_keys = CeilDiv(CeilDiv(task.seqlen_k, wanted), rule.key_block) * rule.key_block;
    plan.chunks = CeilDiv(task.seqlen_k, plan.chunk_keys);
  }
  return plan;
}

void PlanBatch(absl::Span<const AttentionTask> tasks, const PlanRule& rule, BatchPlan* plan) {
  const size_t count = tasks.size();
  plan->tasks.resize(count);
  plan->order.resize(count);
  plan->first_item.resize(count + 1);
  static thread_local std::vector<double> cost;
  cost.resize(count);
  for (size_t i = 0; i < count; ++i) {
    plan->tasks[i] = PlanTask(tasks[i], rule);
    cost[i] = ItemCost(tasks[i], plan->tasks[i]);
  }
  std::iota(plan->order.begin(), plan->order.end(), 0);
  std::stable_sort(plan->order.begin(), plan->order.end(), [](int32_t a, int32_t b) {
    return cost[static_cast<size_t>(a)] > cost[static_cast<size_t>(b)];
  });
  plan->first_item[0] = 0;
  for (size_t i = 0; i < count; ++i) {
    plan->first_item[i + 1] =
        plan->first_item[i] + plan->tasks[static_cast<size_t>(plan->order[i])].items();
  }
}

}  // namespace attend
