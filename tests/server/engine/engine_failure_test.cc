// Devices that fail: out of memory, bad batches, sticky errors. Also several engines of which one
// is sick.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "kernels/errors.h"
#include "server/engine/engine.h"
#include "server/engine/engine_group.h"
#include "server/engine/reasons.h"
#include "tests/server/engine/engine_test_util.h"

namespace attend {
namespace {

using testing::EngineTest;
using testing::FakeDevice;
using testing::IdOf;
using testing::MakeFakeBackend;
using testing::Never;

class EngineFailureTest : public EngineTest {
 protected:
  // Requests 1 to `count` in one batch, after a batch of request 0 alone.
  void RunTogether(int count) {
    device_->Hold();
    Start();
    Submit(0);
    device_->AwaitRunning(1);
    for (int id = 1; id <= count; ++id) Submit(id);
    device_->Release();
    log_.AwaitCount(static_cast<size_t>(count) + 1);
  }
};

TEST_F(EngineFailureTest, ABatchTooLargeForTheDeviceIsSplit) {
  device_->device_bytes = [](const AttentionTask&) { return 100; };
  device_->batch_bytes_limit = 250;
  RunTogether(8);
  for (int id = 0; id <= 8; ++id) EXPECT_EQ(log_.Code(id), absl::StatusCode::kOk) << id;
  EXPECT_GT(observer_.Of("device"), 0);
  int64_t tasks = 0;
  for (const BatchRecord& batch : observer_.batches()) {
    EXPECT_LE(batch.tasks, 2);
    tasks += batch.tasks;
  }
  EXPECT_EQ(tasks, 9) << "each task is counted once, in the run that did it";
  EXPECT_LE(log_.Await(5).report.batch_requests, 2);
}

TEST_F(EngineFailureTest, ARequestTooLargeForTheDeviceIsRefusedAlone) {
  device_->device_bytes = [](const AttentionTask& task) { return IdOf(task) == 3 ? 1000 : 10; };
  device_->batch_bytes_limit = 250;
  RunTogether(6);
  for (int id = 0; id <= 6; ++id) {
    EXPECT_EQ(log_.Code(id), id == 3 ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kOk)
        << id;
  }
  EXPECT_TRUE(engine_->Healthy().ok());
  EXPECT_TRUE(engine_->Drain(Never()).ok());
  ExpectIdle();
}

TEST_F(EngineFailureTest, ABadRequestDoesNotHarmItsBatchMates) {
  device_->judge = [](const AttentionBatch& batch) {
    for (const AttentionTask& task : batch.tasks) {
      if (IdOf(task) == 4) return absl::InternalError("illegal instruction");
    }
    return absl::OkStatus();
  };
  RunTogether(7);
  for (int id = 0; id <= 7; ++id) {
    EXPECT_EQ(log_.Code(id), id == 4 ? absl::StatusCode::kInternal : absl::StatusCode::kOk) << id;
  }
  EXPECT_TRUE(engine_->Healthy().ok());
  EXPECT_EQ(observer_.Of("unhealthy"), 0);
  EXPECT_TRUE(engine_->Drain(Never()).ok());
  ExpectIdle();
}

TEST_F(EngineFailureTest, AFailedPartEndsTheWholeRequestOnce) {
  options_.max_batch_tasks = 2;
  device_->Hold();
  Start();
  device_->FailNext(absl::InternalError("bad"));
  Submit(1, 10);
  device_->AwaitRunning(1);
  device_->Release();
  EXPECT_EQ(log_.Code(1), absl::StatusCode::kInternal);
  EXPECT_EQ(device_->runs().size(), 1u) << "the rest is of no use";
  Submit(2);
  EXPECT_EQ(log_.Code(2), absl::StatusCode::kOk);
  EXPECT_TRUE(engine_->Drain(Never()).ok());
  ExpectIdle();
}

TEST_F(EngineFailureTest, AFailedPartWaitsForTheOthersThatRun) {
  options_.workers = 2;
  options_.max_batch_tasks = 2;
  device_->Hold();
  Start();
  device_->FailNext(absl::InternalError("bad"));
  Submit(1, 8);
  device_->AwaitRunning(2);
  device_->ReleaseOne();
  device_->AwaitFinished(1);
  EXPECT_FALSE(log_.Ended(1)) << "the other worker still uses its memory";
  device_->Release();
  EXPECT_EQ(log_.Code(1), absl::StatusCode::kInternal);
}

TEST_F(EngineFailureTest, AStickyErrorFailsItsBatchAndTheQueue) {
  device_->Hold();
  Start();
  Submit(0);
  device_->AwaitRunning(1);
  Submit(1);
  Submit(2);
  device_->SetHealth(absl::UnavailableError("the device fell off the bus"));
  device_->FailNext(absl::InternalError("unspecified launch failure"));
  device_->Release();
  EXPECT_EQ(log_.Code(0), absl::StatusCode::kInternal);
  EXPECT_EQ(log_.Code(1), absl::StatusCode::kUnavailable);
  EXPECT_EQ(log_.Code(2), absl::StatusCode::kUnavailable);
  EXPECT_EQ(device_->runs().size(), 1u);

  const absl::Status refused = engine_->Admit({"a", 10, 0}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(refused), std::string(kReasonUnhealthy));
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("fell off the bus"));
  Submit(3);
  EXPECT_EQ(log_.Code(3), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(engine_->stats().healthy);
  EXPECT_EQ(engine_->Healthy().code(), absl::StatusCode::kUnavailable);
  device_->SetHealth(absl::OkStatus());
  EXPECT_FALSE(engine_->Healthy().ok()) << "for ever";
  EXPECT_EQ(observer_.Of("unhealthy"), 1);
  EXPECT_TRUE(engine_->Drain(Never()).ok());
  ExpectIdle();
}

TEST_F(EngineFailureTest, AnIdleEngineNoticesWhenAsked) {
  Start();
  EXPECT_TRUE(engine_->Healthy().ok());
  device_->SetHealth(absl::UnavailableError("gone"));
  EXPECT_FALSE(engine_->Healthy().ok());
  EXPECT_FALSE(engine_->Healthy().ok());
  EXPECT_EQ(observer_.Of("unhealthy"), 1);
  EXPECT_FALSE(engine_->stats().healthy);
}

TEST_F(EngineFailureTest, OtherWorkersOfASickDeviceEndTheirBatchesToo) {
  options_.workers = 3;
  device_->Hold();
  Start();
  for (int id = 1; id <= 3; ++id) {
    Submit(id);
    device_->AwaitRunning(id);
    device_->FailNext(absl::InternalError("dead"));
  }
  Submit(4);
  device_->SetHealth(absl::UnavailableError("dead"));
  device_->Release();
  for (int id = 1; id <= 3; ++id) EXPECT_EQ(log_.Code(id), absl::StatusCode::kInternal) << id;
  EXPECT_EQ(log_.Code(4), absl::StatusCode::kUnavailable);
  EXPECT_EQ(observer_.Of("unhealthy"), 1);
}

class EngineGroupTest : public EngineTest {
 protected:
  void StartGroup(int count) {
    std::vector<std::unique_ptr<Engine>> engines;
    for (int i = 0; i < count; ++i) {
      devices_.push_back(std::make_shared<FakeDevice>());
      devices_.back()->compute = testing::AddOne;
      engines.push_back(
          Engine::Create(MakeFakeBackend(devices_.back()), options_, &observer_).value());
    }
    group_ = std::make_unique<EngineGroup>(std::move(engines));
  }

  // Admits and submits, as a server does: the Admission ends after `done`.
  void Send(int id, double flops) {
    auto admission = std::make_shared<Admission>(group_->Admit({"client", 256, flops}).value());
    Request request = MakeRequest(id);
    request.done = [done = std::move(request.done), admission](
                       const absl::Status& status, const RequestReport& report) mutable {
      admission.reset();
      done(status, report);
    };
    group_->Submit(*admission, std::move(request));
  }

  std::vector<std::shared_ptr<FakeDevice>> devices_;
  std::unique_ptr<EngineGroup> group_;
};

TEST_F(EngineGroupTest, SpreadsEqualWork) {
  StartGroup(3);
  for (const auto& device : devices_) device->Hold();
  for (int id = 0; id < 9; ++id) Send(id, 1e6);
  for (const auto& engine : group_->engines()) EXPECT_EQ(engine->stats().in_flight_requests, 3);
  EXPECT_EQ(group_->stats().in_flight_requests, 9);
  for (const auto& device : devices_) device->Release();
  log_.AwaitCount(9);
  EXPECT_TRUE(group_->Drain(Never()).ok());
  EXPECT_EQ(group_->stats().in_flight_requests, 0);
}

TEST_F(EngineGroupTest, LittleWorkGoesWhereLeastIsOutstanding) {
  StartGroup(2);
  Admission large = group_->Admit({"a", 256, 1e9}).value();
  std::vector<Admission> small;
  for (int i = 0; i < 5; ++i) small.push_back(group_->Admit({"b", 256, 1e6}).value());
  const int64_t first = group_->engines()[0]->stats().in_flight_requests;
  EXPECT_TRUE(first == 1 || first == 5) << first;
}

TEST_F(EngineGroupTest, SubmitsWhereItAdmitted) {
  StartGroup(2);
  for (const auto& device : devices_) device->Hold();
  Send(1, 1e6);
  Send(2, 1e6);
  for (const auto& device : devices_) {
    device->AwaitRunning(1);
    device->Release();
  }
  log_.AwaitCount(2);
  EXPECT_EQ(devices_[0]->runs().size(), 1u);
  EXPECT_EQ(devices_[1]->runs().size(), 1u);
}

TEST_F(EngineGroupTest, ASickEngineGetsNothingWhileOthersServe) {
  StartGroup(2);
  devices_[0]->SetHealth(absl::UnavailableError("dead"));
  EXPECT_FALSE(group_->engines()[0]->Healthy().ok());
  for (int id = 0; id < 10; ++id) Send(id, 1e6);
  for (int id = 0; id < 10; ++id) EXPECT_EQ(log_.Code(id), absl::StatusCode::kOk) << id;
  EXPECT_TRUE(devices_[0]->runs().empty());
  EXPECT_TRUE(group_->Healthy().ok());
  EXPECT_FALSE(group_->stats().healthy);
  devices_[1]->SetHealth(absl::UnavailableError("dead too"));
  EXPECT_FALSE(group_->Healthy().ok());
  EXPECT_EQ(group_->Admit({"a", 1, 0}).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(EngineGroupTest, AFullEngineHandsOver) {
  options_.max_in_flight_requests = 1;
  StartGroup(2);
  Admission a = group_->Admit({"a", 1, 0}).value();
  Admission b = group_->Admit({"b", 1, 0}).value();
  EXPECT_EQ(group_->Admit({"c", 1, 0}).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(group_->Admit({"c", SIZE_MAX, 0}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(EngineGroupTest, WarmsUpAndDrainsAll) {
  StartGroup(2);
  for (const auto& device : devices_) device->compute = nullptr;
  EXPECT_TRUE(group_->WarmUp().ok());
  for (const auto& device : devices_) EXPECT_FALSE(device->runs().empty());
  devices_[1]->FailNext(absl::InternalError("no kernel"));
  EXPECT_EQ(group_->WarmUp(), absl::InternalError("no kernel"));
  EXPECT_FALSE(group_->stats().draining);
  EXPECT_TRUE(group_->Drain(Never()).ok());
  EXPECT_TRUE(group_->stats().draining);
}

}  // namespace
}  // namespace attend
