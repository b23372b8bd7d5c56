// Cutting work: the tiles and key chunks of a task, and the order of tasks in a batch.
//
// What a task's tiles and chunks are depends on that task and the kernel's rule alone, never on its
// batch-mates or on how full the device is: the same request gives the same bits in any company.
// Costs O(tasks) on the host; a device or a thread finds its task from prefix sums.

#ifndef ATTEND_KERNELS_PLAN_H_
#define ATTEND_KERNELS_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/attention.h"

namespace attend {

// How one kernel wants its work cut. All fields > 0 except pack_rows.
struct PlanRule {
  int64_t tile_rows = 0;  // query rows of one work item
  int64_t key_block = 0;  // chunks are multiples of this many keys
  // Query heads that share a kv head become rows of one tile when seqlen_q <= pack_rows (decode);
  // 0 never packs.
  int64_t pack_rows = 0;
  // A task with fewer items than this cuts its keys into chunks, none shorter than min_chunk_keys.
  int64_t enough_items = 1;
  int64_t min_chunk_keys = INT64_MAX;
};

struct TaskPlan {
  bool packed = false;     // rows run over (query row, head in group), heads over kv heads
  int64_t heads = 0;       // heads_k when packed, else heads_q
  int64_t rows = 0;        // seqlen_q * group when packed, else seqlen_q
  int64_t row_tiles = 0;   // ceil(rows / tile_rows)
  int64_t chunks = 0;      // key chunks; > 1 means partial results that are merged in key order
  int64_t chunk_keys = 0;  // keys of every chunk but the last
  int64_t items() const { return heads * row_tiles * chunks; }
};

// REQUIRES: Validate(task) is OK. A task without query rows has 0 items; one without keys has one
// chunk, so that its outputs are written.
TaskPlan PlanTask(const AttentionTask& task, const PlanRule& rule);

// A batch in the order to run it: costliest items first, so that no long one starts last.
struct BatchPlan {
  std::vector<TaskPlan> tasks;      // by task index
  std::vector<int32_t> order;       // task indices, by falling cost of one item
  std::vector<int64_t> first_item;  // prefix sums over `order`; size tasks + 1
  int64_t items() const { return first_item.empty() ? 0 : first_item.back(); }
};

// Reuses the vectors of `plan`: no allocation once they have grown.
void PlanBatch(absl::Span<const AttentionTask> tasks, const PlanRule& rule, BatchPlan* plan);

}  // namespace attend

#endif  // ATTEND_KERNELS_PLAN_H_
