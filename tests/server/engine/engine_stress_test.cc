// Many threads at once over a device that fails now and then: every request ends exactly once with
// an end that it may have, outputs are right where it is OK, and all memory comes back.

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "server/engine/engine.h"
#include "tests/server/engine/engine_test_util.h"
#include "tests/testing/random.h"

namespace attend {
namespace {

using testing::AddOne;
using testing::EngineTest;
using testing::IdOf;
using testing::MixSeed;
using testing::Never;
using testing::Random;
using testing::TestSeed;

constexpr int kThreads = 4;
constexpr int kRequestsPerThread = 250;

class EngineStressTest : public EngineTest {
 protected:
  // A request whose tensors lie in its Admission's staging, which ends inside `done`.
  Request InStaging(int id, int tasks, int64_t rows, std::shared_ptr<Admission> admission) {
    float* memory = reinterpret_cast<float*>(admission->staging());
    const int64_t count = rows * tasks;
    std::fill_n(memory, count, static_cast<float>(id));
    std::fill_n(memory + count, count, std::numeric_limits<float>::quiet_NaN());
    Request request;
    request.id = std::to_string(id);
    for (int i = 0; i < tasks; ++i) {
      const auto view = [&](float* base) {
        return TensorView::Contiguous(base + i * rows, DType::kF32, admission->memory_kind(), rows,
                                      1, 1);
      };
      AttentionTask task;
      task.q = task.k = task.v = view(memory);
      task.o = view(memory + count);
      task.seqlen_q = task.seqlen_k = rows;
      request.tasks.push_back(task);
    }
    request.done = [this, id, memory, count, admission, done = log_.For(id)](
                       const absl::Status& status, const RequestReport& report) mutable {
      if (status.ok()) {
        for (int64_t i = 0; i < count; ++i) {
          if (memory[count + i] != static_cast<float>(id) + 1) ++wrong_;
        }
      }
      admission.reset();
      done(status, report);
    };
    return request;
  }

  std::atomic<int> wrong_{0};
};

TEST_F(EngineStressTest, EveryRequestEndsOnceAndNothingIsLeft) {
  options_.workers = 3;
  options_.max_batch_tasks = 8;
  options_.max_in_flight_requests = 64;
  options_.max_in_flight_bytes = 1 << 19;
  options_.ageing = std::chrono::milliseconds(1);
  options_.default_slack = std::chrono::milliseconds(2);
  device_->device_bytes = [](const AttentionTask&) { return 100; };
  device_->batch_bytes_limit = 600;  // full batches are split
  device_->classify = [](const AttentionTask& task) {
    return KernelClass{static_cast<uint64_t>(task.seqlen_q % 2)};
  };
  // Every 50th request is poison for its batch.
  device_->judge = [](const AttentionBatch& batch) {
    for (const AttentionTask& task : batch.tasks) {
      if (static_cast<int>(IdOf(task)) % 50 == 49) return absl::InternalError("poison");
    }
    return absl::OkStatus();
  };
  Start();
  const uint64_t seed = MixSeed(TestSeed(), "engine stress");
  std::atomic<int> submitted{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Random random(seed + static_cast<uint64_t>(t));
      std::vector<RequestHandle> handles;
      for (int i = 0; i < kRequestsPerThread; ++i) {
        const int id = t * kRequestsPerThread + i;
        const int tasks = static_cast<int>(random.Between(1, 12));
        const int64_t rows = random.Between(1, 64);
        const size_t bytes = static_cast<size_t>(2 * rows * tasks) * sizeof(float);
        absl::StatusOr<Admission> admission =
            engine_->Admit({std::to_string(t), bytes, 1.0 * static_cast<double>(rows)});
        if (!admission.ok()) {
          EXPECT_TRUE(absl::IsResourceExhausted(admission.status())) << admission.status();
          std::this_thread::yield();
          continue;
        }
        Request request =
            InStaging(id, tasks, rows, std::make_shared<Admission>(*std::move(admission)));
        request.priority = static_cast<Priority>(random.Between(0, kPriorityCount - 1));
        if (random.Chance(0.2)) {
          request.deadline = Clock::now() + std::chrono::microseconds(random.Between(0, 500));
        }
        ++submitted;
        handles.push_back(engine_->Submit(std::move(request)));
        if (random.Chance(0.2)) {
          handles[static_cast<size_t>(random.Between(0, static_cast<int64_t>(handles.size()) - 1))]
              .Cancel();
        }
        if (random.Chance(0.05)) engine_->stats();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(engine_->Drain(Never()).ok());
  EXPECT_EQ(log_.count(), static_cast<size_t>(submitted.load()));
  EXPECT_GT(submitted, 0);
  EXPECT_EQ(wrong_, 0);
  for (const int id : log_.order()) {
    const absl::StatusCode code = log_.Code(id);
    const bool poison = id % 50 == 49;
    EXPECT_TRUE(code == absl::StatusCode::kCancelled ||
                code == absl::StatusCode::kDeadlineExceeded ||
                code == (poison ? absl::StatusCode::kInternal : absl::StatusCode::kOk))
        << id << ": " << absl::StatusCodeToString(code);
  }
  ExpectIdle();
  engine_.reset();
  EXPECT_EQ(device_->staging_bytes(), 0);
}

TEST_F(EngineStressTest, ADeviceThatDiesUnderLoadAnswersEverything) {
  options_.workers = 2;
  options_.max_batch_tasks = 4;
  Start();
  std::atomic<int> submitted{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) {
        if (t == 0 && i == 50) {
          device_->SetHealth(absl::UnavailableError("dead"));
          device_->FailNext(absl::InternalError("dead"));
        }
        ++submitted;
        Submit(t * 100 + i, 1 + i % 5);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(engine_->Healthy().ok());
  EXPECT_TRUE(engine_->Drain(Never()).ok());
  EXPECT_EQ(log_.count(), static_cast<size_t>(submitted.load()));
  for (const int id : log_.order()) {
    const absl::StatusCode code = log_.Code(id);
    EXPECT_TRUE(code == absl::StatusCode::kOk || code == absl::StatusCode::kInternal ||
                code == absl::StatusCode::kUnavailable)
        << absl::StatusCodeToString(code);
  }
  EXPECT_EQ(observer_.Of("unhealthy"), 1);
  ExpectIdle();
}

}  // namespace
}  // namespace attend
