// Early ends: cancellation, deadlines, drain and destruction.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/errors.h"
#include "server/engine/engine.h"
#include "server/engine/reasons.h"
#include "tests/server/engine/engine_test_util.h"

namespace attend {
namespace {

using std::chrono::milliseconds;
using testing::EngineTest;
using testing::Never;

// A deadline that leaves an idle worker time to launch, however slow the machine.
constexpr milliseconds kLaunchTime{1500};

class EngineEndTest : public EngineTest {
 protected:
  // One worker, held inside a batch of request 0.
  void StartBusy() {
    device_->Hold();
    Start();
    Submit(0);
    device_->AwaitRunning(1);
  }

  RequestHandle SubmitDue(int id, Clock::duration in, int tasks = 1) {
    Request request = MakeRequest(id, tasks);
    request.deadline = Clock::now() + in;
    return engine_->Submit(std::move(request));
  }
};

TEST_F(EngineEndTest, CancelInTheQueueActsAtOnce) {
  StartBusy();
  const RequestHandle handle = Submit(1);
  handle.Cancel();
  EXPECT_EQ(log_.Code(1), absl::StatusCode::kCancelled) << "while the only worker is busy";
  EXPECT_EQ(engine_->stats().queued_requests, 0);
  handle.Cancel();
  device_->Release();
  EXPECT_EQ(log_.Code(0), absl::StatusCode::kOk);
  EXPECT_TRUE(engine_->Drain(Never()).ok());
  EXPECT_EQ(device_->runs().size(), 1u) << "nothing of it was launched";
  EXPECT_EQ(observer_.Of("cancelled_queue"), 1);
  EXPECT_EQ(observer_.Of("cancelled_launched"), 0);
  EXPECT_EQ(observer_.Of("queue_time"), 2);
  ExpectIdle();
}

TEST_F(EngineEndTest, CancelOfALaunchedRequestLetsItFinish) {
  device_->Hold();
  Start();
  const RequestHandle handle = Submit(1);
  device_->AwaitRunning(1);
  handle.Cancel();
  handle.Cancel();
  EXPECT_FALSE(log_.Ended(1)) << "the device still uses its memory";
  device_->Release();
  EXPECT_EQ(log_.Code(1), absl::StatusCode::kOk);
  EXPECT_EQ(observer_.Of("cancelled_launched"), 1);
  EXPECT_EQ(observer_.Of("cancelled_queue"), 0);
}

TEST_F(EngineEndTest, CancelOfAPartlyLaunchedRequestDropsTheRest) {
  options_.max_batch_tasks = 2;
  device_->Hold();
  Start();
  const RequestHandle handle = Submit(1, 6);
  device_->AwaitRunning(1);
  handle.Cancel();
  EXPECT_EQ(engine_->stats().queued_requests, 0);
  EXPECT_FALSE(log_.Ended(1)) << "the device still uses its memory";
  device_->Release();
  EXPECT_EQ(log_.Code(1), absl::StatusCode::kCancelled);
  EXPECT_EQ(device_->runs().size(), 1u);
  EXPECT_EQ(observer_.Of("cancelled_launched"), 1);
  EXPECT_TRUE(engine_->Drain(Never()).ok());
  ExpectIdle();
}

TEST_F(EngineEndTest, CancelAfterTheEndOrTheEngineIsHarmless) {
  Start();
  const RequestHandle handle = Submit(1);
  EXPECT_EQ(log_.Code(1), absl::StatusCode::kOk);
  handle.Cancel();
  engine_.reset();
  handle.Cancel();
  RequestHandle().Cancel();
  EXPECT_EQ(observer_.Of("cancelled_queue") + observer_.Of("cancelled_launched"), 0);
}

TEST_F(EngineEndTest, ADeadlineActsWhileEveryWorkerIsBusy) {
  StartBusy();
  SubmitDue(1, milliseconds(20));
  SubmitDue(2, milliseconds(5));  // earlier than the one the timer waits for
  Submit(3);
  EXPECT_EQ(log_.Code(2), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(log_.Code(1), absl::StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(log_.Ended(0));
  EXPECT_EQ(observer_.Of("expired_queue"), 2);
  device_->Release();
  EXPECT_EQ(log_.Code(3), absl::StatusCode::kOk);
  EXPECT_EQ(device_->runs().size(), 2u) << "nothing of them was launched";
  EXPECT_TRUE(engine_->Drain(Never()).ok());
  ExpectIdle();
}

TEST_F(EngineEndTest, ADeadlineIsNotEarly) {
  StartBusy();
  Clock::time_point ended;
  Request request = MakeRequest(1);
  const Clock::time_point deadline = Clock::now() + milliseconds(10);
  request.deadline = deadline;
  request.done = [&, done = std::move(request.done)](const absl::Status& status,
                                                     const RequestReport& report) {
    ended = Clock::now();
    done(status, report);
  };
  engine_->Submit(std::move(request));
  EXPECT_EQ(log_.Code(1), absl::StatusCode::kDeadlineExceeded);
  EXPECT_GE(ended, deadline);
  device_->Release();
}

TEST_F(EngineEndTest, ADeadlineInThePastIsRefused) {
  Start();
  SubmitDue(1, milliseconds(-1));
  EXPECT_EQ(log_.Code(1), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(device_->runs().empty());
  EXPECT_EQ(observer_.Of("expired_queue"), 1);
}

TEST_F(EngineEndTest, ALaunchedRequestMayEndAfterItsDeadline) {
  device_->Hold();
  Start();
  const Clock::time_point deadline = Clock::now() + std::chrono::hours(1);
  Request request = MakeRequest(1);
  request.deadline = deadline;
  engine_->Submit(std::move(request));
  device_->AwaitRunning(1);
  device_->Release();
  EXPECT_EQ(log_.Code(1), absl::StatusCode::kOk);
  EXPECT_EQ(observer_.Of("expired_launched"), 0);

  // The worker is held until another request's deadline, later than this one's, has passed.
  device_->Hold();
  SubmitDue(2, kLaunchTime);
  device_->AwaitRunning(1);
  SubmitDue(3, kLaunchTime + milliseconds(1));
  EXPECT_EQ(log_.Code(3), absl::StatusCode::kDeadlineExceeded);
  device_->Release();
  const absl::StatusCode code = log_.Code(2);
  EXPECT_EQ(code, absl::StatusCode::kOk);
  EXPECT_EQ(observer_.Of("expired_launched"), 1);
}

TEST_F(EngineEndTest, ADeadlineDropsTheRestOfAPartlyLaunchedRequest) {
  options_.max_batch_tasks = 2;
  device_->Hold();
  Start();
  SubmitDue(1, kLaunchTime, 6);
  device_->AwaitRunning(1);
  SubmitDue(2, kLaunchTime + milliseconds(1));
  EXPECT_EQ(log_.Code(2), absl::StatusCode::kDeadlineExceeded);  // 1's has passed too
  EXPECT_FALSE(log_.Ended(1)) << "the device still uses its memory";
  device_->Release();
  EXPECT_EQ(log_.Code(1), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(device_->runs().size(), 1u);
  EXPECT_EQ(observer_.Of("expired_launched"), 1);
}

TEST_F(EngineEndTest, DrainAnswersAllThatWasAcceptedAndRefusesTheRest) {
  StartBusy();
  Submit(1);
  Submit(2);
  absl::Status drained = absl::UnknownError("not yet");
  std::thread drain([&] { drained = engine_->Drain(Never()); });
  while (!engine_->stats().draining) std::this_thread::yield();
  const absl::Status refused = engine_->Admit({"a", 10, 0}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReasonOf(refused), std::string(kReasonDraining));
  Submit(3);
  EXPECT_EQ(log_.Code(3), absl::StatusCode::kUnavailable) << "holds no place";
  device_->Release();
  drain.join();
  EXPECT_TRUE(drained.ok()) << drained;
  for (const int id : {0, 1, 2}) EXPECT_EQ(log_.Code(id), absl::StatusCode::kOk) << id;
  ExpectIdle();
}

TEST_F(EngineEndTest, DrainWaitsForAPlaceThatWasGiven) {
  Start();
  auto admission = std::make_shared<Admission>(engine_->Admit({"a", 10, 0}).value());
  absl::Status drained = absl::UnknownError("not yet");
  std::thread drain([&] { drained = engine_->Drain(Never()); });
  while (!engine_->stats().draining) std::this_thread::yield();
  Request request = MakeRequest(1);
  request.done = [done = std::move(request.done), admission](const absl::Status& status,
                                                             const RequestReport& report) {
    done(status, report);
  };
  admission.reset();
  engine_->Submit(std::move(request));
  EXPECT_EQ(log_.Code(1), absl::StatusCode::kOk) << "its place was promised";
  drain.join();
  EXPECT_TRUE(drained.ok()) << drained;
  ExpectIdle();
}

TEST_F(EngineEndTest, DrainEndsAtItsDeadlineAndEndsWhatIsQueued) {
  StartBusy();
  Submit(1);
  EXPECT_EQ(engine_->Drain(Clock::now() + milliseconds(5)).code(),
            absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(log_.Code(1), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(log_.Ended(0));
  device_->Release();
  EXPECT_EQ(log_.Code(0), absl::StatusCode::kOk);
  EXPECT_TRUE(engine_->Drain(Never()).ok());
  ExpectIdle();
}

TEST_F(EngineEndTest, NothingEntersAfterADrain) {
  Start();
  EXPECT_TRUE(engine_->Drain(Never()).ok());
  Submit(1);
  EXPECT_EQ(log_.Code(1), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(engine_->Admit({"a", 0, 0}).ok());
}

TEST_F(EngineEndTest, DestructionRunsWhatWasAccepted) {
  StartBusy();
  for (int id = 1; id <= 5; ++id) Submit(id);
  std::thread release([&] { device_->Release(); });
  engine_.reset();
  release.join();
  EXPECT_EQ(log_.count(), 6u);
  for (int id = 0; id <= 5; ++id) EXPECT_EQ(log_.Code(id), absl::StatusCode::kOk) << id;
}

// Cancels, deadlines and completions race for the same requests; each must end once, and the
// memory of each must be left alone after its end (the sanitizers watch).
TEST_F(EngineEndTest, RacingEndsEndEachRequestOnce) {
  options_.workers = 2;
  options_.max_batch_tasks = 4;
  Start();
  constexpr int kRequests = 400;
  std::vector<RequestHandle> handles(kRequests);
  for (int id = 0; id < kRequests; ++id) {
    Request request = MakeRequest(id, 1 + id % 6);
    if (id % 3 == 0) request.deadline = Clock::now() + std::chrono::microseconds(id % 200);
    handles[static_cast<size_t>(id)] = engine_->Submit(std::move(request));
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      for (int id = t; id < kRequests; id += 1 + t) handles[static_cast<size_t>(id)].Cancel();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(engine_->Drain(Never()).ok());
  EXPECT_EQ(log_.count(), static_cast<size_t>(kRequests));
  ExpectIdle();
  const int cancelled = observer_.Of("cancelled_queue");
  const int expired = observer_.Of("expired_queue");
  int ok = 0;
  for (int id = 0; id < kRequests; ++id) ok += log_.Code(id) == absl::StatusCode::kOk ? 1 : 0;
  EXPECT_LE(ok + cancelled + expired, kRequests);
}

}  // namespace
}  // namespace attend
