// How work is cut: tiles and chunks cover every row and key once, and depend on the task alone.

#include "kernels/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "tests/testing/random.h"

namespace attend {
namespace {

AttentionTask Task(int64_t sq, int64_t sk, int64_t hq, int64_t hk, int64_t d = 64) {
  const auto view = [](int64_t rows, int64_t heads, int64_t columns) {
    return TensorView::Contiguous(nullptr, DType::kBF16, MemoryKind::kHost, rows, heads, columns);
  };
  AttentionTask task;
  task.q = task.o = view(sq, hq, d);
  task.k = task.v = view(sk, hk, d);
  task.seqlen_q = sq;
  task.seqlen_k = sk;
  return task;
}

constexpr PlanRule kRule = {
    .tile_rows = 64, .key_block = 64, .pack_rows = 16, .enough_items = 100, .min_chunk_keys = 512};

AttentionTask RandomTask(testing::Random& random) {
  const int64_t hk = random.Between(1, 5);
  AttentionTask task = Task(random.Chance(0.5) ? random.Between(0, 20) : random.Between(0, 3000),
                            random.Between(0, 20000), hk * random.Between(1, 8), hk);
  task.mask.causal = random.Chance(0.5);
  return task;
}

PlanRule RandomRule(testing::Random& random) {
  PlanRule rule;
  rule.tile_rows = random.Between(1, 128);
  rule.key_block = random.Between(1, 128);
  rule.pack_rows = random.Between(0, 32);
  rule.enough_items = random.Between(1, 300);
  rule.min_chunk_keys = random.Between(1, 4000);
  return rule;
}

TEST(PlanTask, TilesAndChunksCoverExactlyOnce) {
  const uint64_t seed = testing::TestSeed();
  testing::Random random(seed);
  for (int trial = 0; trial < 5000; ++trial) {
    const AttentionTask task = RandomTask(random);
    const PlanRule rule = RandomRule(random);
    const TaskPlan plan = PlanTask(task, rule);
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " trial " << trial);
    // Rows times heads are the same work, packed or not.
    ASSERT_EQ(plan.rows * plan.heads, task.seqlen_q * task.heads_q());
    ASSERT_GE(plan.row_tiles * rule.tile_rows, plan.rows);
    ASSERT_LT((plan.row_tiles - 1) * rule.tile_rows, std::max<int64_t>(plan.rows, 1));
    // Chunks tile the keys: none empty, none left over.
    ASSERT_GE(plan.chunks, 1);
    ASSERT_GT(plan.chunk_keys, 0);
    ASSERT_GE(plan.chunks * plan.chunk_keys, task.seqlen_k);
    if (task.seqlen_k > 0) {
      ASSERT_LT((plan.chunks - 1) * plan.chunk_keys, task.seqlen_k);
    }
    if (plan.chunks > 1) {
      ASSERT_EQ(plan.chunk_keys % rule.key_block, 0);
      ASSERT_GT(task.seqlen_k, rule.min_chunk_keys);
      ASSERT_LT(plan.heads * plan.row_tiles, rule.enough_items);
    }
    if (plan.packed) {
      ASSERT_LE(task.seqlen_q, rule.pack_rows);
    }
  }
}

TEST(PlanTask, ChunksAreNotShorterThanTheyMay) {
  // "None shorter than min_chunk_keys", but for the last, which gets what is left.
  const uint64_t seed = testing::TestSeed();
  testing::Random random(seed ^ 1);
  for (int trial = 0; trial < 5000; ++trial) {
    const AttentionTask task = RandomTask(random);
    const PlanRule rule = RandomRule(random);
    const TaskPlan plan = PlanTask(task, rule);
    if (plan.chunks > 1) {
      ASSERT_GE(plan.chunk_keys, rule.min_chunk_keys) << "seed " << seed << " trial " << trial;
    }
  }
}

TEST(PlanTask, PacksAGroupOnlyForFewRows) {
  const TaskPlan decode = PlanTask(Task(1, 100, 32, 4), kRule);
  EXPECT_TRUE(decode.packed);
  EXPECT_EQ(decode.heads, 4);
  EXPECT_EQ(decode.rows, 8);
  EXPECT_TRUE(PlanTask(Task(16, 100, 32, 4), kRule).packed);
  EXPECT_FALSE(PlanTask(Task(17, 100, 32, 4), kRule).packed);
  EXPECT_FALSE(PlanTask(Task(1, 100, 4, 4), kRule).packed) << "no group to pack";
  PlanRule never = kRule;
  never.pack_rows = 0;
  EXPECT_FALSE(PlanTask(Task(1, 100, 32, 4), never).packed);
}

TEST(PlanTask, CutsKeysOnlyWhenItemsAreFew) {
  EXPECT_GT(PlanTask(Task(1, 10000, 8, 8), kRule).chunks, 1);
  EXPECT_EQ(PlanTask(Task(1, 10000, 100, 100), kRule).chunks, 1) << "enough items";
  EXPECT_EQ(PlanTask(Task(1, 512, 8, 8), kRule).chunks, 1) << "too few keys";
  EXPECT_EQ(PlanTask(Task(6400, 10000, 1, 1), kRule).chunks, 1) << "enough row tiles";
}

TEST(PlanTask, EmptyTasks) {
  EXPECT_EQ(PlanTask(Task(0, 100, 4, 4), kRule).items(), 0);
  const TaskPlan keyless = PlanTask(Task(10, 0, 4, 4), kRule);
  EXPECT_EQ(keyless.items(), 4) << "its outputs must be written";
  EXPECT_EQ(keyless.chunks, 1);
}

TEST(PlanBatch, PrefixSumsOverItemsByFallingCost) {
  const uint64_t seed = testing::TestSeed();
  testing::Random random(seed ^ 2);
  BatchPlan plan;  // reused, growing and shrinking
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<AttentionTask> tasks;
    const int64_t count = random.Between(0, 40);
    for (int64_t i = 0; i < count; ++i) tasks.push_back(RandomTask(random));
    const PlanRule rule = RandomRule(random);
    PlanBatch(tasks, rule, &plan);
    SCOPED_TRACE(::testing::Message() << "seed " << seed << " trial " << trial);
    ASSERT_EQ(plan.tasks.size(), tasks.size());
    ASSERT_EQ(plan.first_item.size(), tasks.size() + 1);
    const std::set<int32_t> distinct(plan.order.begin(), plan.order.end());
    ASSERT_EQ(distinct.size(), tasks.size());
    ASSERT_EQ(plan.first_item[0], 0);
    double before = std::numeric_limits<double>::infinity();
    for (size_t n = 0; n < tasks.size(); ++n) {
      const size_t index = static_cast<size_t>(plan.order[n]);
      ASSERT_LT(index, tasks.size());
      const TaskPlan alone = PlanTask(tasks[index], rule);
      const TaskPlan& together = plan.tasks[index];
      // The same in any company.
      ASSERT_EQ(together.packed, alone.packed);
      ASSERT_EQ(together.heads, alone.heads);
      ASSERT_EQ(together.rows, alone.rows);
      ASSERT_EQ(together.row_tiles, alone.row_tiles);
      ASSERT_EQ(together.chunks, alone.chunks);
      ASSERT_EQ(together.chunk_keys, alone.chunk_keys);
      ASSERT_EQ(plan.first_item[n + 1] - plan.first_item[n], alone.items());
      const double cost =
          alone.items() == 0 ? 0 : Flops(tasks[index]) / static_cast<double>(alone.items());
      ASSERT_LE(cost, before * (1 + 1e-12));
      before = cost;
    }
    ASSERT_EQ(plan.items(), plan.first_item.back());
  }
}

TEST(PlanBatch, AnEmptyPlanHasNoItems) {
  BatchPlan plan;
  EXPECT_EQ(plan.items(), 0);
  PlanBatch({}, kRule, &plan);
  EXPECT_EQ(plan.items(), 0);
}

}  // namespace
}  // namespace attend
