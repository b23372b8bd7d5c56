// The engine's everyday life: requests come, share batches, and are answered once each.

#include "server/engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/errors.h"
#include "server/engine/reasons.h"
#include "tests/server/engine/engine_test_util.h"

namespace attend {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using testing::EngineTest;
using testing::FakeRun;
using testing::MakeFakeBackend;
using testing::TestTensors;

TEST_F(EngineTest, ARequestIsComputedAndAnswered) {
  Start();
  auto tensors = std::make_shared<TestTensors>(41.0f, 2, 3);
  Request request;
  request.tasks = tensors->tasks();
  request.done = log_.For(1);
  engine_->Submit(std::move(request));
  EXPECT_EQ(log_.Code(1), absl::StatusCode::kOk);
  EXPECT_THAT(tensors->output(), ::testing::Each(42.0f));
  const RequestReport report = log_.Await(1).report;
  EXPECT_EQ(report.batch_requests, 1);
  EXPECT_EQ(report.batch_tasks, 2);
  EXPECT_EQ(report.batch_tokens, 6);
  EXPECT_GT(report.kernel_seconds, 0);
  EXPECT_TRUE(engine_->Drain(testing::Never()).ok());
  ExpectIdle();
}

TEST_F(EngineTest, DoneComesFromAnotherThreadAndWithoutALock) {
  Start();
  const std::thread::id caller = std::this_thread::get_id();
  std::thread::id called;
  Request request = MakeRequest(1);
  request.done = [&, done = std::move(request.done)](const absl::Status& status,
                                                     const RequestReport& report) {
    called = std::this_thread::get_id();
    // Each of these would deadlock under the engine's lock.
    EXPECT_EQ(engine_->stats().queued_requests, 0);
    EXPECT_TRUE(engine_->Healthy().ok());
    EXPECT_TRUE(engine_->Admit({"another", 100, 0}).ok());
    Submit(2);
    done(status, report);
  };
  engine_->Submit(std::move(request));
  EXPECT_EQ(log_.Code(1), absl::StatusCode::kOk);
  EXPECT_EQ(log_.Code(2), absl::StatusCode::kOk);
  EXPECT_NE(called, caller);
}

TEST_F(EngineTest, WhatQueuesWhileAllWorkersAreBusySharesABatch) {
  device_->Hold();
  Start();
  Submit(1);
  device_->AwaitRunning(1);
  for (int id = 2; id <= 6; ++id) Submit(id);
  EXPECT_EQ(engine_->stats().queued_requests, 5);
  EXPECT_EQ(engine_->stats().queued_tokens, 20);
  EXPECT_GT(engine_->stats().queued_bytes, 0);
  device_->Release();
  log_.AwaitCount(6);
  ASSERT_EQ(device_->runs().size(), 2u);
  EXPECT_EQ(device_->runs()[0].tasks.size(), 1u) << "an idle worker does not wait for company";
  EXPECT_EQ(device_->runs()[1].tasks.size(), 5u);
  EXPECT_EQ(log_.Await(3).report.batch_requests, 5);
  const std::vector<BatchRecord> batches = observer_.batches();
  ASSERT_EQ(batches.size(), 2u);
  EXPECT_EQ(batches[1].requests, 5);
  EXPECT_EQ(batches[1].tasks, 5);
  EXPECT_EQ(batches[1].query_tokens, 20);
  EXPECT_EQ(batches[1].kv_tokens, 20);
  EXPECT_EQ(batches[1].flops, 5 * 2.0 * (1 + 1) * 16);
  EXPECT_EQ(batches[1].avoided_bytes, 5 * 16 * 4);
  EXPECT_EQ(batches[1].reason, BatchReason::kDrained);
  EXPECT_EQ(observer_.Of("queue_time"), 6);
}

TEST_F(EngineTest, EachWorkerTakesABatchOfItsOwn) {
  options_.workers = 3;
  device_->Hold();
  Start();
  for (int id = 1; id <= 3; ++id) {
    Submit(id);
    device_->AwaitRunning(id);
  }
  Submit(4);
  EXPECT_EQ(engine_->stats().queued_requests, 1);
  device_->Release();
  log_.AwaitCount(4);
  std::set<int> executors;
  for (const FakeRun& run : device_->runs()) executors.insert(run.executor);
  EXPECT_EQ(executors.size(), 3u);
}

TEST_F(EngineTest, ALargeRequestIsSplitAndEndsWithItsLastTask) {
  options_.max_batch_tasks = 4;
  device_->Hold();
  Start();
  Submit(1, 10);
  for (int run = 1; run <= 3; ++run) {
    device_->AwaitRunning(1);
    EXPECT_FALSE(log_.Ended(1));
    device_->ReleaseOne();
    device_->AwaitFinished(run);
  }
  EXPECT_EQ(log_.Code(1), absl::StatusCode::kOk);
  EXPECT_EQ(log_.Await(1).report.batch_tasks, 4);
  ASSERT_EQ(device_->runs().size(), 3u);
  EXPECT_EQ(device_->runs()[2].tasks.size(), 2u);
  EXPECT_EQ(observer_.Of("queue_time"), 1);
  EXPECT_EQ(observer_.batches()[0].reason, BatchReason::kFull);
}

TEST_F(EngineTest, PriorityThenDeadlineDecideTheOrder) {
  options_.max_batch_tasks = 1;
  options_.completion_threads = 1;  // so that the log has the order of the batches
  options_.ageing = std::chrono::hours(1);
  options_.default_slack = std::chrono::hours(1);
  device_->Hold();
  Start();
  Submit(1);
  device_->AwaitRunning(1);
  const auto submit = [&](int id, Priority priority, std::optional<int> due_minutes) {
    Request request = MakeRequest(id);
    request.priority = priority;
    if (due_minutes.has_value()) {
      request.deadline = Clock::now() + std::chrono::minutes(*due_minutes);
    }
    engine_->Submit(std::move(request));
  };
  submit(2, Priority::kLow, 10);
  submit(3, Priority::kNormal, std::nullopt);
  submit(4, Priority::kNormal, 30);
  submit(5, Priority::kNormal, 20);
  submit(6, Priority::kHigh, std::nullopt);
  device_->Release();
  log_.AwaitCount(6);
  EXPECT_THAT(log_.order(), ElementsAre(1, 6, 5, 4, 3, 2));
}

TEST_F(EngineTest, ARequestWithoutTasksEndsWell) {
  Start();
  Submit(1, 0);
  EXPECT_EQ(log_.Code(1), absl::StatusCode::kOk);
  EXPECT_TRUE(device_->runs().empty());
}

TEST_F(EngineTest, BatchDelayWaitsForCompany) {
  options_.batch_delay = std::chrono::hours(1);
  options_.max_batch_tasks = 3;
  Start();
  Submit(1);
  Submit(2);
  EXPECT_EQ(engine_->stats().queued_requests, 2) << "held back";
  Submit(3);
  log_.AwaitCount(3);
  ASSERT_EQ(device_->runs().size(), 1u);
  EXPECT_EQ(device_->runs()[0].tasks.size(), 3u);
}

TEST_F(EngineTest, BatchDelayEnds) {
  options_.batch_delay = milliseconds(1);
  Start();
  Submit(1);
  EXPECT_EQ(log_.Code(1), absl::StatusCode::kOk);
}

TEST_F(EngineTest, WarmUpRunsEachDTypeOnEveryWorker) {
  options_.workers = 2;
  device_->compute = nullptr;  // it would take every dtype for fp32
  Start();
  EXPECT_TRUE(engine_->WarmUp().ok());
  std::set<std::pair<int, DType>> seen;
  for (const FakeRun& run : device_->runs()) {
    for (const AttentionTask& task : run.tasks) {
      EXPECT_TRUE(Validate(task).ok()) << Validate(task);
      seen.emplace(run.executor, task.dtype());
    }
  }
  EXPECT_EQ(seen.size(), 2u * kDTypeCount);
  EXPECT_TRUE(observer_.batches().empty()) << "warm-up is no client's work";
  ExpectIdle();
}

TEST_F(EngineTest, WarmUpSkipsWhatTheBackendLacks) {
  device_->compute = nullptr;
  device_->features = {Feature::kFp16};
  Start();
  EXPECT_TRUE(engine_->WarmUp().ok());
  ASSERT_FALSE(device_->runs().empty());
  for (const FakeRun& run : device_->runs()) EXPECT_EQ(run.tasks[0].dtype(), DType::kF16);
}

TEST_F(EngineTest, WarmUpTellsTheFirstError) {
  device_->compute = nullptr;
  Start();
  device_->FailNext(absl::InternalError("no such kernel"));
  EXPECT_EQ(engine_->WarmUp(), absl::InternalError("no such kernel"));
  EXPECT_TRUE(engine_->WarmUp().ok());
}

TEST_F(EngineTest, BadOptionsAreNamed) {
  const auto field_of = [&](auto change) {
    EngineOptions options = options_;
    change(&options);
    const auto engine = Engine::Create(MakeFakeBackend(device_), options, nullptr);
    EXPECT_EQ(engine.status().code(), absl::StatusCode::kInvalidArgument);
    return FieldOf(engine.status()).value_or("");
  };
  EXPECT_EQ(field_of([](EngineOptions* o) { o->workers = -1; }), "workers");
  EXPECT_EQ(field_of([](EngineOptions* o) { o->completion_threads = 0; }), "completion_threads");
  EXPECT_EQ(field_of([](EngineOptions* o) { o->max_in_flight_requests = 0; }),
            "max_in_flight_requests");
  EXPECT_EQ(field_of([](EngineOptions* o) { o->client_share = 1.5; }), "client_share");
  EXPECT_EQ(field_of([](EngineOptions* o) { o->client_share = std::nan(""); }), "client_share");
  EXPECT_EQ(field_of([](EngineOptions* o) { o->max_batch_flops = std::nan(""); }),
            "max_batch_flops");
  EXPECT_EQ(field_of([](EngineOptions* o) { o->staging_initial_bytes = 1 << 21; }),
            "staging_initial_bytes");
  EXPECT_EQ(field_of([](EngineOptions* o) { o->ageing = milliseconds(0); }), "ageing");
  EXPECT_TRUE(Validate(EngineOptions{}).ok());
}

TEST_F(EngineTest, NeedsItsStagingAtStart) {
  device_->staging_limit = 1000;
  const auto engine = Engine::Create(MakeFakeBackend(device_), options_, nullptr);
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(device_->staging_bytes(), 0);
}

TEST_F(EngineTest, WorksWithoutAnObserver) {
  auto engine = Engine::Create(MakeFakeBackend(device_), options_, nullptr).value();
  engine->Submit(MakeRequest(1));
  EXPECT_EQ(log_.Code(1), absl::StatusCode::kOk);
}

}  // namespace
}  // namespace attend
