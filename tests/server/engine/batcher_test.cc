// The batcher: its policy by example, and all of it against the model by chance.

#include "server/engine/batcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <vector>

#include "tests/server/engine/batcher_model.h"
#include "tests/testing/random.h"

namespace attend {
namespace {

using std::chrono::milliseconds;
using testing::BatcherModel;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::MixSeed;
using testing::Random;
using testing::TestSeed;

const Clock::time_point kStart{std::chrono::hours(1)};

Clock::time_point At(int64_t ms) { return kStart + milliseconds(ms); }

BatcherRequest Request(uint64_t sequence, Priority priority = Priority::kNormal, int tasks = 1,
                       uint64_t kernel_class = 0) {
  BatcherRequest request;
  request.sequence = sequence;
  request.priority = priority;
  request.tasks.assign(static_cast<size_t>(tasks), {KernelClass{kernel_class}, 1.0, 1});
  return request;
}

BatcherRequest Due(BatcherRequest request, int64_t ms) {
  request.deadline = At(ms);
  return request;
}

std::vector<uint64_t> Sequences(const Batch& batch) {
  std::vector<uint64_t> sequences;
  for (const TaskRef& task : batch.tasks) sequences.push_back(task.sequence);
  return sequences;
}

class BatcherTest : public ::testing::Test {
 protected:
  std::vector<uint64_t> TakeAt(Batcher* batcher, int64_t ms) {
    batcher->Take(At(ms), &batch_);
    return Sequences(batch_);
  }

  // One task a batch, so that batches show the order.
  static EngineOptions OneByOne() {
    EngineOptions options;
    options.max_batch_tasks = 1;
    return options;
  }

  EngineOptions options_;
  Batch batch_;
};

TEST_F(BatcherTest, NothingIsTakenFromAnEmptyQueue) {
  Batcher batcher(options_);
  EXPECT_THAT(TakeAt(&batcher, 0), IsEmpty());
  EXPECT_FALSE(batch_.ready_at.has_value());
  EXPECT_TRUE(batcher.empty());
}

TEST_F(BatcherTest, OneRequestIsTakenAtOnce) {
  Batcher batcher(options_);
  ASSERT_TRUE(batcher.Add(Request(1), At(0)));
  EXPECT_THAT(TakeAt(&batcher, 0), ElementsAre(1));
  EXPECT_EQ(batch_.reason, BatchReason::kDrained);
  EXPECT_TRUE(batcher.empty());
}

TEST_F(BatcherTest, EqualsGoInOrderOfArrival) {
  Batcher batcher(options_);
  for (const uint64_t sequence : {1, 2, 3}) batcher.Add(Request(sequence), At(0));
  EXPECT_THAT(TakeAt(&batcher, 1), ElementsAre(1, 2, 3));
}

TEST_F(BatcherTest, HigherPriorityGoesFirst) {
  Batcher batcher(options_);
  batcher.Add(Request(1, Priority::kLow), At(0));
  batcher.Add(Request(2, Priority::kNormal), At(1));
  batcher.Add(Request(3, Priority::kHigh), At(2));
  EXPECT_THAT(TakeAt(&batcher, 3), ElementsAre(3, 2, 1));
}

TEST_F(BatcherTest, EarlierDeadlineGoesFirstWithinALevel) {
  Batcher batcher(options_);
  batcher.Add(Due(Request(1), 300), At(0));
  batcher.Add(Due(Request(2), 200), At(1));
  batcher.Add(Request(3), At(2));
  EXPECT_THAT(TakeAt(&batcher, 3), ElementsAre(2, 1, 3));
}

TEST_F(BatcherTest, ADeadlineDoesNotBeatAHigherPriority) {
  Batcher batcher(options_);
  batcher.Add(Due(Request(1, Priority::kNormal), 5), At(0));
  batcher.Add(Request(2, Priority::kHigh), At(1));
  EXPECT_THAT(TakeAt(&batcher, 2), ElementsAre(2, 1));
}

TEST_F(BatcherTest, NamingAFarDeadlineIsNoWorseThanNamingNone) {
  Batcher batcher(options_);
  batcher.Add(Due(Request(1), 3600 * 1000), At(0));
  batcher.Add(Request(2), At(1));
  EXPECT_THAT(TakeAt(&batcher, 2), ElementsAre(1, 2));
}

TEST_F(BatcherTest, ARequestGainsOneLevelForEachAgeingPeriod) {
  options_.ageing = milliseconds(100);
  Batcher batcher(options_);
  batcher.Add(Request(1, Priority::kLow), At(0));
  batcher.Add(Request(2, Priority::kNormal), At(99));
  EXPECT_THAT(TakeAt(&batcher, 99), ElementsAre(2, 1));

  batcher.Add(Request(3, Priority::kLow), At(200));
  batcher.Add(Request(4, Priority::kNormal), At(299));
  EXPECT_THAT(TakeAt(&batcher, 300), ElementsAre(3, 4));

  batcher.Add(Request(5, Priority::kLow), At(400));
  batcher.Add(Request(6, Priority::kHigh), At(599));
  EXPECT_THAT(TakeAt(&batcher, 600), ElementsAre(5, 6)) << "two levels at one look";
}

TEST_F(BatcherTest, NoRequestStarvesUnderAFloodOfHighPriority) {
  EngineOptions options = OneByOne();
  options.ageing = milliseconds(100);
  options.default_slack = milliseconds(50);
  Batcher batcher(options);
  batcher.Add(Request(1, Priority::kLow), At(0));
  // Two of high priority arrive for each that is taken; the low one is the highest level at 200 ms
  // and every rival that came before 0 + slack is gone by then or ranks behind.
  uint64_t next = 2;
  int64_t taken_at = -1;
  for (int64_t ms = 1; ms < 1000 && taken_at < 0; ++ms) {
    batcher.Add(Request(next++, Priority::kHigh), At(ms));
    batcher.Add(Request(next++, Priority::kHigh), At(ms));
    if (TakeAt(&batcher, ms) == std::vector<uint64_t>{1}) taken_at = ms;
  }
  EXPECT_EQ(taken_at, 200);
}

TEST_F(BatcherTest, OtherClassesWait) {
  Batcher batcher(options_);
  batcher.Add(Request(1, Priority::kNormal, 1, 7), At(0));
  batcher.Add(Request(2, Priority::kNormal, 1, 5), At(0));
  batcher.Add(Request(3, Priority::kNormal, 1, 7), At(0));
  EXPECT_THAT(TakeAt(&batcher, 1), ElementsAre(1, 3));
  EXPECT_EQ(batch_.kernel_class, KernelClass{7});
  EXPECT_EQ(batch_.reason, BatchReason::kDrained);
  EXPECT_THAT(TakeAt(&batcher, 1), ElementsAre(2));
  EXPECT_EQ(batch_.kernel_class, KernelClass{5});
}

TEST_F(BatcherTest, OneRequestMayHoldSeveralClasses) {
  Batcher batcher(options_);
  BatcherRequest request = Request(1, Priority::kNormal, 4);
  request.tasks[1].kernel_class = request.tasks[3].kernel_class = KernelClass{9};
  batcher.Add(request, At(0));
  TakeAt(&batcher, 0);
  EXPECT_THAT(batch_.tasks, ElementsAre(TaskRef{1, 0}, TaskRef{1, 2}));
  EXPECT_EQ(batcher.requests(), 1u) << "still has tasks of the other class";
  TakeAt(&batcher, 0);
  EXPECT_THAT(batch_.tasks, ElementsAre(TaskRef{1, 1}, TaskRef{1, 3}));
  EXPECT_TRUE(batcher.empty());
}

TEST_F(BatcherTest, EachBudgetClosesABatch) {
  for (const int budget : {0, 1, 2}) {
    EngineOptions options;
    if (budget == 0) options.max_batch_tasks = 2;
    if (budget == 1) options.max_batch_flops = 2.5;
    if (budget == 2) options.max_batch_bytes = 2;
    Batcher batcher(options);
    for (const uint64_t sequence : {1, 2, 3}) batcher.Add(Request(sequence), At(0));
    EXPECT_THAT(TakeAt(&batcher, 0), ElementsAre(1, 2)) << budget;
    EXPECT_EQ(batch_.reason, BatchReason::kFull) << budget;
    EXPECT_THAT(TakeAt(&batcher, 0), ElementsAre(3)) << budget;
    EXPECT_EQ(batch_.reason, BatchReason::kDrained) << budget;
  }
}

TEST_F(BatcherTest, ATaskLargerThanTheBudgetRunsAlone) {
  options_.max_batch_flops = 10;
  Batcher batcher(options_);
  BatcherRequest huge = Request(1);
  huge.tasks[0].flops = 1000;
  batcher.Add(huge, At(0));
  batcher.Add(Request(2), At(0));
  EXPECT_THAT(TakeAt(&batcher, 0), ElementsAre(1));
  EXPECT_EQ(batch_.reason, BatchReason::kFull);
  EXPECT_THAT(TakeAt(&batcher, 0), ElementsAre(2));
}

TEST_F(BatcherTest, ALargeRequestIsSplitAndAMoreUrgentOneCutsIn) {
  options_.max_batch_tasks = 3;
  Batcher batcher(options_);
  batcher.Add(Request(1, Priority::kNormal, 7), At(0));
  EXPECT_THAT(TakeAt(&batcher, 0), ElementsAre(1, 1, 1));
  batcher.Add(Request(2, Priority::kHigh), At(1));
  EXPECT_THAT(TakeAt(&batcher, 1), ElementsAre(2, 1, 1));
  TakeAt(&batcher, 2);
  EXPECT_THAT(batch_.tasks, ElementsAre(TaskRef{1, 5}, TaskRef{1, 6}));
  EXPECT_TRUE(batcher.empty());
}

TEST_F(BatcherTest, RemoveTakesOutWhatIsLeft) {
  options_.max_batch_tasks = 3;
  Batcher batcher(options_);
  batcher.Add(Due(Request(1, Priority::kLow, 5), 500), At(0));
  EXPECT_THAT(TakeAt(&batcher, 0), ElementsAre(1, 1, 1));
  EXPECT_EQ(batcher.Remove(1), 2);
  EXPECT_EQ(batcher.Remove(1), 0);
  EXPECT_EQ(batcher.Remove(99), 0);
  EXPECT_TRUE(batcher.empty());
  std::vector<uint64_t> expired;
  EXPECT_FALSE(batcher.Expire(At(1000), &expired).has_value());
  EXPECT_THAT(expired, IsEmpty());
  EXPECT_THAT(TakeAt(&batcher, 1000), IsEmpty());
}

TEST_F(BatcherTest, ExpireRemovesAtTheDeadlineAndTellsTheNext) {
  Batcher batcher(options_);
  batcher.Add(Due(Request(1), 20), At(0));
  batcher.Add(Due(Request(2), 10), At(0));
  batcher.Add(Request(3), At(0));
  std::vector<uint64_t> expired;
  EXPECT_EQ(batcher.Expire(At(9), &expired), At(10));
  EXPECT_THAT(expired, IsEmpty());
  EXPECT_EQ(batcher.Expire(At(10), &expired), At(20));
  EXPECT_THAT(expired, ElementsAre(2));
  expired.clear();
  EXPECT_FALSE(batcher.Expire(At(25), &expired).has_value());
  EXPECT_THAT(expired, ElementsAre(1));
  EXPECT_THAT(TakeAt(&batcher, 3600 * 1000), ElementsAre(3)) << "never expires without a deadline";
}

TEST_F(BatcherTest, TheQueueIsBounded) {
  options_.max_in_flight_requests = 2;
  Batcher batcher(options_);
  EXPECT_TRUE(batcher.Add(Request(1), At(0)));
  EXPECT_TRUE(batcher.Add(Request(2), At(0)));
  EXPECT_FALSE(batcher.Add(Request(3), At(0)));
  EXPECT_THAT(TakeAt(&batcher, 0), ElementsAre(1, 2));
  EXPECT_TRUE(batcher.Add(Request(4), At(0)));
}

TEST_F(BatcherTest, DelayHoldsABatchUntilItIsFullOrOld) {
  options_.batch_delay = milliseconds(5);
  options_.max_batch_tasks = 2;
  Batcher batcher(options_);
  batcher.Add(Request(1), At(0));
  EXPECT_THAT(TakeAt(&batcher, 0), IsEmpty());
  EXPECT_EQ(batch_.ready_at, At(5));
  EXPECT_THAT(TakeAt(&batcher, 5), ElementsAre(1)) << "old enough";

  batcher.Add(Request(2), At(10));
  batcher.Add(Request(3), At(11));
  EXPECT_THAT(TakeAt(&batcher, 11), ElementsAre(2, 3)) << "full";
}

TEST_F(BatcherTest, AHeldClassDoesNotHoldOthers) {
  options_.batch_delay = milliseconds(5);
  Batcher batcher(options_);
  batcher.Add(Request(1, Priority::kLow, 1, 1), At(0));
  batcher.Add(Request(2, Priority::kHigh, 1, 2), At(4));
  EXPECT_THAT(TakeAt(&batcher, 6), ElementsAre(1));
  EXPECT_THAT(TakeAt(&batcher, 6), IsEmpty());
  EXPECT_EQ(batch_.ready_at, At(9));
}

// A round of random work on the batcher and on the model, which must agree on everything.
void RunAgainstModel(uint64_t seed) {
  Random random(seed);
  EngineOptions options;
  options.max_in_flight_requests = random.Between(1, 40);
  options.max_batch_tasks = random.Between(1, 12);
  options.max_batch_flops = static_cast<double>(random.Between(1, 60));
  options.max_batch_bytes = random.Between(1, 60);
  options.default_slack = milliseconds(random.Between(0, 60));
  options.ageing = milliseconds(random.Between(1, 40));
  if (random.Chance(0.3)) options.batch_delay = milliseconds(random.Between(1, 10));
  Batcher batcher(options);
  BatcherModel model(options);
  const int64_t classes = random.Between(1, 4);

  std::set<std::pair<uint64_t, int32_t>> delivered;  // each task leaves once
  uint64_t next_sequence = 1;
  int64_t ms = 0;
  for (int step = 0; step < 400; ++step) {
    ms += random.Between(0, 3) == 0 ? random.Between(0, 25) : 0;
    const int64_t action = random.Between(0, 9);
    if (action < 5) {
      BatcherRequest request;
      request.sequence = next_sequence++;
      request.priority = static_cast<Priority>(random.Between(0, kPriorityCount - 1));
      if (random.Chance(0.5)) request.deadline = At(ms + random.Between(0, 100));
      const int64_t tasks = random.Chance(0.7) ? 1 : random.Between(1, 20);
      for (int64_t i = 0; i < tasks; ++i) {
        // Whole numbers, so that sums agree whatever their order.
        request.tasks.push_back({KernelClass{static_cast<uint64_t>(random.Between(1, classes))},
                                 static_cast<double>(random.Between(0, 20)),
                                 random.Between(0, 20)});
      }
      ASSERT_EQ(batcher.Add(request, At(ms)), model.Add(request, At(ms)));
    } else if (action < 6) {
      const uint64_t sequence =
          static_cast<uint64_t>(random.Between(0, static_cast<int64_t>(next_sequence)));
      ASSERT_EQ(batcher.Remove(sequence), model.Remove(sequence));
    } else if (action < 7) {
      std::vector<uint64_t> expired;
      const auto next = batcher.Expire(At(ms), &expired);
      ASSERT_EQ(expired, model.Expire(At(ms)));
      ASSERT_EQ(next, model.NextDeadline());
    } else {
      Batch batch;
      batcher.Take(At(ms), &batch);
      const Batch expected = model.Take(At(ms));
      ASSERT_EQ(batch.tasks, expected.tasks);
      ASSERT_EQ(batch.ready_at, expected.ready_at);
      if (!batch.tasks.empty()) {
        ASSERT_EQ(batch.kernel_class, expected.kernel_class);
        ASSERT_EQ(batch.reason, expected.reason);
      }
      for (const TaskRef& task : batch.tasks) {
        ASSERT_TRUE(delivered.emplace(task.sequence, task.index).second);
      }
    }
    ASSERT_EQ(batcher.requests(), model.requests());
  }
}

TEST(BatcherModelTest, AgreesWithTheModel) {
  for (int round = 0; round < 200; ++round) {
    const uint64_t seed = MixSeed(TestSeed(), "batcher") + static_cast<uint64_t>(round);
    SCOPED_TRACE(::testing::Message() << "round " << round);
    RunAgainstModel(seed);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace attend
