// The Hopper family's planning, which needs no device: items cover every tile once, chunks cover
// every visible key once, and a task's cut depends on that task alone.

#include "kernels/cuda/forward/sm90/sm90_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "tests/testing/random.h"

namespace attend::cuda::sm90 {
namespace {

using ::attend::testing::MixSeed;
using ::attend::testing::Random;
using ::attend::testing::TestSeed;

AttentionTask MakeTask(int64_t sq, int64_t sk, int64_t hq, int64_t hk, int64_t d, int64_t dv,
                       int64_t padding = 0) {
  static char memory[16];
  const auto view = [](int64_t rows, int64_t heads, int64_t columns) {
    return TensorView::Contiguous(memory, DType::kBF16, MemoryKind::kHost, rows, heads, columns);
  };
  AttentionTask task;
  task.q = view(sq + padding, hq, d);
  task.k = view(sk, hk, d);
  task.v = view(sk, hk, dv);
  task.o = view(sq + padding, hq, dv);
  task.seqlen_q = sq;
  task.seqlen_k = sk;
  task.softmax_scale = 0.1f;
  return task;
}

AttentionTask RandomTask(Random& random) {
  const int64_t hk = random.Between(1, 5);
  const int64_t group = random.Chance(0.5) ? 1 : random.Between(2, 9);
  const int64_t sq = random.Chance(0.3) ? random.Between(0, 9) : random.Between(0, 900);
  const int64_t sk = random.Chance(0.3) ? random.Between(0, 40000) : random.Between(0, 900);
  AttentionTask task = MakeTask(sq, sk, hk * group, hk, 128, 128, random.Between(0, 40));
  task.mask.causal = random.Chance(0.4);
  if (random.Chance(0.3)) task.mask.window_left = random.Between(0, 600);
  if (random.Chance(0.2)) task.mask.window_right = random.Between(0, 600);
  if (random.Chance(0.1)) task.softcap = 20.0f;
  return task;
}

// What the device does with an item's number, in plain words.
struct Place {
  int64_t task, head, tile, chunk;
  auto operator<=>(const Place&) const = default;
};
Place Find(const Sm90BatchPlan& plan, const Sm90Part& part, int64_t item) {
  int32_t s = part.first_segment;
  while (s + 1 < part.first_segment + part.segments &&
         plan.segments[static_cast<size_t>(s + 1)].first_item <= item) {
    ++s;
  }
  const Sm90Segment& segment = plan.segments[static_cast<size_t>(s)];
  int64_t head = item - segment.first_item;
  const int64_t heads = int64_t{segment.heads} * segment.tasks;
  const int64_t places = int64_t{segment.row_tiles} * segment.chunks;
  int64_t place = 0;
  if (segment.rows_inner != 0) {
    place = head % places;
    head /= places;
  } else {
    place = head / heads;
    head %= heads;
  }
  const int64_t at = segment.first_task + head / segment.heads;
  return {plan.order[static_cast<size_t>(at)], segment.first_head + head % segment.heads,
          segment.row_tiles - 1 - place / segment.chunks, place % segment.chunks};
}

TEST(Sm90PlanTest, EveryTileOfEveryTaskIsOneItem) {
  Random random(MixSeed(TestSeed(), "items"));
  for (int round = 0; round < 60; ++round) {
    std::vector<AttentionTask> tasks;
    const int64_t count = random.Between(1, 20);
    while (static_cast<int64_t>(tasks.size()) < count) {
      tasks.push_back(RandomTask(random));
      while (random.Chance(0.5)) tasks.push_back(tasks.back());  // equal shapes share segments
    }
    Sm90BatchPlan plan;
    PlanSm90Batch(tasks, &plan);
    std::map<Place, int> seen;
    int64_t total = 0;
    for (const Sm90Part& part : plan.parts) {
      for (int64_t item = 0; item < part.items; ++item) {
        const Place place = Find(plan, part, item);
        ++seen[place];
        EXPECT_EQ(plan.tasks[static_cast<size_t>(place.task)].kind, part.kind);
      }
      total += part.items;
    }
    int64_t expected = 0;
    for (size_t i = 0; i < tasks.size(); ++i) {
      const Sm90TaskPlan& task = plan.tasks[i];
      EXPECT_EQ(task.heads * task.pack, tasks[i].heads_q());
      EXPECT_GE(task.row_tiles * task.rows, tasks[i].padded_q());
      expected += task.items();
      for (int64_t h = 0; h < task.heads; ++h) {
        for (int64_t t = 0; t < task.row_tiles; ++t) {
          for (int64_t c = 0; c < task.chunks; ++c) {
            ASSERT_EQ((seen[{static_cast<int64_t>(i), h, t, c}]), 1);
          }
        }
      }
    }
    EXPECT_EQ(total, expected);
  }
}

TEST(Sm90PlanTest, ChunksCoverTheVisibleKeysInWholeBlocks) {
  Random random(MixSeed(TestSeed(), "chunks"));
  int cut = 0;
  for (int round = 0; round < 3000; ++round) {
    const AttentionTask task = RandomTask(random);
    if (task.seqlen_q == 0) continue;  // no row sees anything
    const Sm90TaskPlan plan = PlanSm90Task(task);
    if (plan.chunks == 1) {
      EXPECT_EQ(plan.chunk_origin, 0);
      EXPECT_GE(plan.chunk_keys, task.seqlen_k);
      continue;
    }
    ++cut;
    const Sm90Kernel& kernel = KernelOf(HeadTileOf(task), plan.kind, true);
    EXPECT_TRUE(kernel.direct);
    EXPECT_EQ(plan.chunk_origin % kernel.keys, 0);
    EXPECT_EQ(plan.chunk_keys % kernel.keys, 0);
    int64_t begin = task.seqlen_k, end = 0;
    for (const int64_t row : {int64_t{0}, task.seqlen_q - 1}) {
      const KeyRange keys = VisibleKeys(task.mask, row, task.seqlen_q, task.seqlen_k);
      if (keys.begin == keys.end) continue;
      begin = std::min(begin, keys.begin);
      end = std::max(end, keys.end);
    }
    EXPECT_LE(plan.chunk_origin, begin);
    EXPECT_GE(plan.chunk_origin + plan.chunks * plan.chunk_keys, end);
    EXPECT_LT(plan.chunk_origin + (plan.chunks - 1) * plan.chunk_keys, task.seqlen_k);
  }
  EXPECT_GT(cut, 100);
}

TEST(Sm90PlanTest, ACutDependsOnTheTaskAlone) {
  Random random(MixSeed(TestSeed(), "alone"));
  std::vector<AttentionTask> tasks;
  for (int i = 0; i < 200; ++i) tasks.push_back(RandomTask(random));
  Sm90BatchPlan plan;
  PlanSm90Batch(tasks, &plan);
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Sm90TaskPlan alone = PlanSm90Task(tasks[i]);
    EXPECT_EQ(std::tie(alone.kind, alone.pack, alone.rows, alone.chunk_origin, alone.chunk_keys,
                       alone.chunks, alone.first_offset, alone.end_offset),
              std::tie(plan.tasks[i].kind, plan.tasks[i].pack, plan.tasks[i].rows,
                       plan.tasks[i].chunk_origin, plan.tasks[i].chunk_keys, plan.tasks[i].chunks,
                       plan.tasks[i].first_offset, plan.tasks[i].end_offset));
  }
}

TEST(Sm90PlanTest, MaskOffsetsAgreeWithTheVocabulary) {
  Random random(MixSeed(TestSeed(), "masks"));
  for (int round = 0; round < 2000; ++round) {
    AttentionTask task = RandomTask(random);
    if (random.Chance(0.1)) task.mask.window_left = INT64_MAX;
    if (random.Chance(0.1)) task.mask.window_right = INT64_MAX;
    const Sm90TaskPlan plan = PlanSm90Task(task);
    bool masked = false;
    for (int64_t row = 0; row < task.seqlen_q; row += random.Between(1, 50)) {
      const KeyRange keys = VisibleKeys(task.mask, row, task.seqlen_q, task.seqlen_k);
      const int64_t begin = std::max<int64_t>(0, row + plan.first_offset);
      const int64_t end = std::min(task.seqlen_k, row + plan.end_offset);
      EXPECT_EQ(keys.end - keys.begin, std::max<int64_t>(end - begin, 0));
      if (keys.begin < keys.end) {
        EXPECT_EQ(keys.begin, begin);
        EXPECT_EQ(keys.end, end);
      }
      if (keys.end - keys.begin < task.seqlen_k) masked = true;
    }
    if (masked) {
      EXPECT_TRUE(plan.masked);
    }
  }
}

TEST(Sm90PlanTest, LongestItemsComeFirst) {
  std::vector<AttentionTask> tasks;
  for (const int64_t length : {300, 5000, 40, 2000, 5000}) {
    tasks.push_back(MakeTask(length, length, 4, 4, 128, 128));
    tasks.back().mask.causal = true;
  }
  Sm90BatchPlan plan;
  PlanSm90Batch(tasks, &plan);
  double last = INFINITY;
  TileKind kind = TileKind::kLong;
  for (const int32_t i : plan.order) {
    const Sm90TaskPlan& task = plan.tasks[static_cast<size_t>(i)];
    if (task.kind != kind) last = INFINITY;
    kind = task.kind;
    EXPECT_LE(task.item_cost, last);
    last = task.item_cost;
  }
}

}  // namespace
}  // namespace attend::cuda::sm90
