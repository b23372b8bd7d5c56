#include "kernels/cuda/forward/sm90/sm90_plan.h"

#include <algorithm>

#include "kernels/cuda/forward/sm90/sm90_rules.h"

namespace attend::cuda::sm90 {
namespace {

int64_t CeilDiv(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

int64_t Group(const AttentionTask& task) {
  return task.heads_k() == 0 ? 1 : task.heads_q() / task.heads_k();
}

// a + b, saturating at the device's limits.
int32_t Offset(int64_t a, int64_t b) {
  return static_cast<int32_t>(std::clamp<int64_t>(a + b, -kMaxLength, kMaxLength));
}

// Row i sees keys [i + first_offset, i + end_offset). Bounds of a window may be near INT64_MAX.
void MaskOffsets(const AttentionTask& task, Sm90TaskPlan* plan) {
  const int64_t diagonal = task.seqlen_k - task.seqlen_q;
  const MaskSpec& mask = task.mask;
  const int64_t left = std::min<int64_t>(mask.window_left.value_or(INT64_MAX), 4LL * kMaxLength);
  int64_t right = std::min<int64_t>(mask.window_right.value_or(INT64_MAX), 4LL * kMaxLength);
  if (mask.causal) right = 0;
  plan->first_offset = Offset(diagonal, -left);
  plan->end_offset = Offset(diagonal, right + 1);
  plan->masked = plan->end_offset < task.seqlen_k || task.seqlen_q - 1 + plan->first_offset > 0;
}

// Scales that may be folded into the exponential: positive, and far from where products with scores
// or quotients by them leave fp32's range.
bool Modified(const AttentionTask& task) {
  return task.softcap != 0.0f || !task.alibi_slopes.absent() ||
         !(task.softmax_scale >= kSmallestFoldedScale && task.softmax_scale <= kLargestFoldedScale);
}

TileKind KindOf(const AttentionTask& task, bool masked, bool modified) {
  const int64_t tiles = CeilDiv(task.padded_q(), kShortRows) * task.heads_q();
  if (task.seqlen_q * Group(task) <= kDecodeRows || task.seqlen_q <= kDecodeQueries ||
      (tiles <= kFewTiles && task.seqlen_k >= kFewTilesKeys)) {
    return TileKind::kDecode;
  }
  if (modified) return TileKind::kModified;
  const HeadTile head_tile = HeadTileOf(task);
  if (head_tile == HeadTile::k64) {
    return task.seqlen_q >= (masked ? kLongFromD64Masked : kLongFromD64) ? TileKind::kLong
                                                                         : TileKind::kShort;
  }
  if (head_tile != HeadTile::k128) return TileKind::kShort;
  if (masked) return task.seqlen_q >= kLongFromD128Masked ? TileKind::kLong : TileKind::kShort;
  const auto cost = [&task](const Sm90Kernel& kernel) {
    const int64_t rows = CeilDiv(task.padded_q(), kernel.rows) * kernel.rows;
    const int64_t keys = CeilDiv(task.seqlen_k, kernel.keys) * kernel.keys;
    return static_cast<double>(rows) * static_cast<double>(keys + kTileCostKeys);
  };
  const bool bf16 = task.dtype() == DType::kBF16;
  return cost(KernelOf(head_tile, TileKind::kLong, bf16)) <
                 kLongTileRate * cost(KernelOf(head_tile, TileKind::kShort, bf16))
             ? TileKind::kLong
             : TileKind::kShort;
}

// The largest divisor of the group that fits a decode tile.
int64_t PackOf(int64_t group) {
  int64_t pack = std::min(group, kDecodeRows);
  while (group % pack != 0) --pack;
  return pack;
}

void CutKeys(const AttentionTask& task, int64_t keys, Sm90TaskPlan* plan) {
  // Keys that some row sees.
  const int64_t begin = std::clamp<int64_t>(plan->first_offset, 0, task.seqlen_k) / keys * keys;
  const int64_t end =
      std::clamp<int64_t>(task.seqlen_q - 1 + plan->end_offset, begin, task.seqlen_k);
  const int64_t tiles = plan->heads * plan->row_tiles;
  if (tiles == 0 || end <= begin) return;
  const int64_t enough = plan->row_tiles == 1 ? kEnoughOneTileItems : kEnoughItems;
  const int64_t wanted =
      std::max(std::min(CeilDiv(enough, tiles), CeilDiv(end - begin, kMinChunkKeys)),
               std::min(CeilDiv(kPlentyItems, tiles), CeilDiv(end - begin, kLongChunkKeys)));
  plan->chunk_origin = begin;
  plan->chunk_keys = CeilDiv(CeilDiv(end - begin, wanted), keys) * keys;
  plan->chunks = CeilDiv(end - begin, plan->chunk_keys);
  if (plan->chunks == 1) {
    plan->chunk_origin = 0;
    plan->chunk_keys = kMaxLength;
  }
}

bool SameShape(const AttentionTask& a, const Sm90TaskPlan& plan_a, const AttentionTask& b,
               const Sm90TaskPlan& plan_b) {
  return plan_a.kind == plan_b.kind && plan_a.masked == plan_b.masked &&
         plan_a.heads == plan_b.heads && plan_a.row_tiles == plan_b.row_tiles &&
         plan_a.chunks == plan_b.chunks && a.seqlen_k == b.seqlen_k &&
         plan_a.first_offset == plan_b.first_offset && plan_a.end_offset == plan_b.end_offset;
}

// Adds the segments of tasks [first, first + count) of the order, all of one shape.
void AddSegments(const AttentionTask& task, const Sm90TaskPlan& plan, int64_t first, int64_t count,
                 int64_t* items, std::vector<Sm90Segment>* segments) {
  const int64_t pairs_per_kv = plan.heads / std::max<int64_t>(task.heads_k(), 1);
  int64_t heads = plan.heads;
  int64_t tasks = count;
  const bool rows_inner = !plan.masked && plan.chunks == 1;
  if (!rows_inner) {
    // Neighbours in time share K and V: sections of heads whose K and V fit L2.
    const int64_t kv_bytes =
        std::max<int64_t>(task.seqlen_k * (task.head_dim() + task.head_dim_v()) * 2, 1);
    const int64_t section = std::max<int64_t>(kSectionBytes / kv_bytes, 1) * pairs_per_kv;
    heads = std::min(plan.heads, section);
    tasks = heads < plan.heads ? 1 : std::min(count, std::max<int64_t>(section / plan.heads, 1));
  }
  for (int64_t t = 0; t < count; t += tasks) {
    for (int64_t h = 0; h < plan.heads; h += heads) {
      Sm90Segment segment = {};
      segment.first_item = static_cast<int32_t>(*items);
      segment.first_task = static_cast<int32_t>(first + t);
      segment.tasks = static_cast<int32_t>(std::min(tasks, count - t));
      segment.first_head = static_cast<int32_t>(h);
      segment.heads = static_cast<int32_t>(std::min(heads, plan.heads - h));
      segment.row_tiles = static_cast<int32_t>(plan.row_tiles);
      segment.chunks = static_cast<int32_t>(plan.chunks);
      segment.rows_inner = rows_inner ? 1 : 0;
      segments->push_back(segment);
      *items += int64_t{segment.tasks} * segment.heads * plan.row_tiles * plan.chunks;
    }
  }
}

}  // namespace

HeadTile HeadTileOf(const AttentionTask& task) {
  const int64_t d = task.head_dim(), dv = task.head_dim_v();
  if (d <= 64 && dv <= 64) return HeadTile::k64;
  if (d <= 96 && dv <= 96) return HeadTile::k96;
  if (d <= 128 && dv <= 128) return HeadTile::k128;
  if (d <= 192 && dv <= 128) return HeadTile::k192x128;
  if (d <= 192 && dv <= 192) return HeadTile::k192;
  return HeadTile::k256;
}

const Sm90Kernel& KernelOf(HeadTile head_tile, TileKind kind, bool bf16) {
  if (kind == TileKind::kDecode) {
    if (head_tile == HeadTile::k64) return KernelD64Decode(bf16);
    if (head_tile <= HeadTile::k128) return KernelD128Decode(bf16);
    return KernelD256Decode(bf16);
  }
  switch (head_tile) {
    case HeadTile::k64:
      if (kind == TileKind::kModified) return KernelD64Modified(bf16);
      return kind == TileKind::kLong ? KernelD64Rows192(bf16) : KernelD64Rows128(bf16);
    case HeadTile::k96:
      return KernelD96Rows128(bf16);
    case HeadTile::k128:
      if (kind == TileKind::kModified) return KernelD128Modified(bf16);
      return kind == TileKind::kLong ? KernelD128Rows192(bf16) : KernelD128Rows128(bf16);
    case HeadTile::k192x128:
      return KernelD192V128Rows128(bf16);
    case HeadTile::k192:
      return KernelD192Rows128(bf16);
    case HeadTile::k256:
      break;
  }
  return KernelD256Rows128(bf16);
}

Sm90TaskPlan PlanSm90Task(const AttentionTask& task) {
  Sm90TaskPlan plan;
  MaskOffsets(task, &plan);
  plan.modified = Modified(task);
  plan.kind = KindOf(task, plan.masked, plan.modified);
  const Sm90Kernel& kernel = KernelOf(HeadTileOf(task), plan.kind, task.dtype() == DType::kBF16);
  if (plan.kind == TileKind::kDecode) plan.pack = static_cast<int32_t>(PackOf(Group(task)));
  plan.rows = kernel.rows / plan.pack;
  plan.heads = task.heads_q() / plan.pack;
  plan.row_tiles = CeilDiv(task.padded_q(), plan.rows);
  if (plan.kind == TileKind::kDecode) CutKeys(task, kernel.keys, &plan);
  if (plan.items() > 0) {
    plan.item_cost = static_cast<double>(VisiblePairs(task.mask, task.seqlen_q, task.seqlen_k)) *
                     static_cast<double>(task.heads_q()) / static_cast<double>(plan.items());
  }
  return plan;
}

void PlanSm90Batch(absl::Span<const AttentionTask> tasks, Sm90BatchPlan* plan) {
  const size_t count = tasks.size();
  plan->tasks.resize(count);
  plan->order.resize(count);
  plan->segments.clear();
  plan->parts.clear();
  for (size_t i = 0; i < count; ++i) plan->tasks[i] = PlanSm90Task(tasks[i]);
  const auto task_plan = [plan](int64_t place) -> const Sm90TaskPlan& {
    return plan->tasks[static_cast<size_t>(plan->order[static_cast<size_t>(place)])];
  };
  const auto task_at = [plan, tasks](int64_t place) -> const AttentionTask& {
    return tasks[static_cast<size_t>(plan->order[static_cast<size_t>(place)])];
  };
  plan->keys.resize(count);
  for (size_t i = 0; i < count; ++i) {
    plan->keys[i] = {static_cast<uint32_t>(plan->tasks[i].kind), static_cast<int32_t>(i),
                     -plan->tasks[i].item_cost};
  }
  std::sort(plan->keys.begin(), plan->keys.end(),
            [](const Sm90BatchPlan::Key& a, const Sm90BatchPlan::Key& b) {
              if (a.kind != b.kind) return a.kind < b.kind;
              if (a.cost != b.cost) return a.cost < b.cost;
              return a.task < b.task;
            });
  for (size_t i = 0; i < count; ++i) plan->order[i] = plan->keys[i].task;
  const int64_t end = static_cast<int64_t>(count);
  for (int64_t first = 0; first < end;) {
    const Sm90TaskPlan& shape = task_plan(first);
    int64_t next = first + 1;
    while (next < end && SameShape(task_at(first), shape, task_at(next), task_plan(next))) ++next;
    if (plan->parts.empty() || plan->parts.back().kind != shape.kind) {
      plan->parts.push_back(
          {shape.kind, static_cast<int32_t>(plan->segments.size()), 0, 0, !shape.masked});
    } else {
      plan->parts.back().equal_items = false;  // a second shape
    }
    Sm90Part& part = plan->parts.back();
    if (shape.items() > 0) {
      AddSegments(task_at(first), shape, first, next - first, &part.items, &plan->segments);
    }
    part.segments = static_cast<int32_t>(plan->segments.size()) - part.first_segment;
    first = next;
  }
}

}  // namespace attend::cuda::sm90
