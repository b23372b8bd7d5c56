// What the tests of the engine share: requests with memory of their own, a record of how each
// ended, and an observer that counts.

#ifndef ATTEND_TESTS_SERVER_ENGINE_ENGINE_TEST_UTIL_H_
#define ATTEND_TESTS_SERVER_ENGINE_ENGINE_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "server/engine/engine.h"
#include "tests/testing/fake_backend.h"

namespace attend::testing {

// A point in time that no test reaches.
inline Clock::time_point Never() { return Clock::time_point::max(); }

// Tensors of `tasks` fp32 sequences, one head of one column. q starts with `id` everywhere, o with
// NaN.
class TestTensors {
 public:
  TestTensors(float id, int tasks, int64_t rows) : rows_(rows) {
    const size_t count = static_cast<size_t>(rows * tasks);
    input_.assign(count, id);
    output_.assign(count, std::numeric_limits<float>::quiet_NaN());
    for (int i = 0; i < tasks; ++i) tasks_.push_back(Task(i));
  }

  const std::vector<AttentionTask>& tasks() const { return tasks_; }
  const std::vector<float>& output() const { return output_; }

 private:
  TensorView View(std::vector<float>* memory, int index) const {
    return TensorView::Contiguous(memory->data() + index * rows_, DType::kF32, MemoryKind::kHost,
                                  rows_, 1, 1);
  }
  AttentionTask Task(int index) {
    AttentionTask task;
    task.q = task.k = task.v = View(&input_, index);
    task.o = View(&output_, index);
    task.seqlen_q = task.seqlen_k = rows_;
    return task;
  }

  const int64_t rows_;
  std::vector<float> input_;
  std::vector<float> output_;
  std::vector<AttentionTask> tasks_;
};

// What FakeDevice::compute may be: each output becomes its input plus one.
inline void AddOne(const AttentionTask& task) {
  const float* from = static_cast<const float*>(task.q.data);
  float* to = static_cast<float*>(task.o.data);
  for (int64_t i = 0; i < task.seqlen_q; ++i) to[i] = from[i] + 1;
}

// The `id` of the TestTensors that a task belongs to.
inline float IdOf(const AttentionTask& task) { return *static_cast<const float*>(task.q.data); }

// Remembers how requests ended; fails the test when one ends twice. Thread-safe.
class DoneLog {
 public:
  struct Entry {
    absl::Status status;
    RequestReport report;
  };

  // A `done` for the request `id`. It drops `keep` (tensors, an Admission) when it has been called,
  // as a server would.
  std::function<void(const absl::Status&, const RequestReport&)> For(
      int id, std::shared_ptr<void> keep = nullptr) {
    return [this, id, keep](const absl::Status& status, const RequestReport& report) mutable {
      keep.reset();
      // A copy that shares nothing: the test reads it on another thread.
      const std::string message(status.message());
      const std::lock_guard lock(mutex_);
      EXPECT_TRUE(entries_.emplace(id, Entry{absl::Status(status.code(), message), report}).second)
          << "request " << id << " ended twice";
      order_.push_back(id);
      changed_.notify_all();
    };
  }

  // Returns when `id` has ended.
  Entry Await(int id) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return entries_.count(id) != 0; });
    return entries_[id];
  }
  // Returns when `count` requests have ended.
  void AwaitCount(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return entries_.size() >= count; });
  }
  absl::StatusCode Code(int id) { return Await(id).status.code(); }
  bool Ended(int id) const {
    const std::lock_guard lock(mutex_);
    return entries_.count(id) != 0;
  }
  size_t count() const {
    const std::lock_guard lock(mutex_);
    return entries_.size();
  }
  std::vector<int> order() const {
    const std::lock_guard lock(mutex_);
    return order_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, Entry> entries_;
  std::vector<int> order_;
};

// Counts what the engine tells. Thread-safe.
class CountingObserver final : public EngineObserver {
 public:
  void OnBatch(const BatchRecord& batch) override {
    const std::lock_guard lock(mutex_);
    batches_.push_back(batch);
  }
  void OnQueueTime(double seconds) override {
    EXPECT_GE(seconds, 0);
    Count("queue_time");
  }
  void OnCancelled(EndStage stage) override {
    Count(stage == EndStage::kQueue ? "cancelled_queue" : "cancelled_launched");
  }
  void OnExpired(EndStage stage) override {
    Count(stage == EndStage::kQueue ? "expired_queue" : "expired_launched");
  }
  void OnAllocationFailure(std::string_view pool) override { Count(std::string(pool)); }
  void OnUnhealthy(const absl::Status& status) override {
    EXPECT_FALSE(status.ok());
    Count("unhealthy");
  }

  int Of(const std::string& event) const {
    const std::lock_guard lock(mutex_);
    const auto found = counts_.find(event);
    return found == counts_.end() ? 0 : found->second;
  }
  std::vector<BatchRecord> batches() const {
    const std::lock_guard lock(mutex_);
    return batches_;
  }

 private:
  void Count(const std::string& event) {
    const std::lock_guard lock(mutex_);
    ++counts_[event];
  }

  mutable std::mutex mutex_;
  std::map<std::string, int> counts_;
  std::vector<BatchRecord> batches_;
};

// An engine over a fake device.
class EngineTest : public ::testing::Test {
 protected:
  EngineTest() {
    // Small, so that tests are quick.
    options_.max_in_flight_bytes = 1 << 20;
    options_.staging_slab_bytes = 1 << 16;
    options_.staging_initial_bytes = 1 << 16;
    device_->compute = AddOne;
  }

  void Start() {
    absl::StatusOr<std::unique_ptr<Engine>> engine =
        Engine::Create(MakeFakeBackend(device_), options_, &observer_);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
  }

  // A request over fresh tensors that live until its `done` has been called, then die: whoever
  // touches them later is caught by the sanitizers.
  Request MakeRequest(int id, int tasks = 1, int64_t rows = 4) {
    auto tensors = std::make_shared<TestTensors>(static_cast<float>(id), tasks, rows);
    Request request;
    request.id = std::to_string(id);
    request.tasks = tensors->tasks();
    request.done = log_.For(id, tensors);
    return request;
  }

  RequestHandle Submit(int id, int tasks = 1) { return engine_->Submit(MakeRequest(id, tasks)); }

  // Everything is back where it was.
  void ExpectIdle() {
    const EngineStats stats = engine_->stats();
    EXPECT_EQ(stats.queued_requests, 0);
    EXPECT_EQ(stats.queued_tokens, 0);
    EXPECT_EQ(stats.queued_bytes, 0);
    EXPECT_EQ(stats.in_flight_requests, 0);
    EXPECT_EQ(stats.in_flight_bytes, 0);
    EXPECT_EQ(stats.in_flight_flops, 0);
    EXPECT_EQ(stats.outstanding_flops, 0);
    EXPECT_EQ(stats.staging_used_bytes, 0);
  }

  // The ids of the distinct requests of a run, in order.
  static std::vector<int> Ids(const FakeRun& run, const std::map<const void*, int>& owners) {
    std::vector<int> ids;
    for (const AttentionTask& task : run.tasks) {
      const int id = owners.at(task.q.data);
      if (ids.empty() || ids.back() != id) ids.push_back(id);
    }
    return ids;
  }

  std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  EngineOptions options_;
  CountingObserver observer_;
  DoneLog log_;
  std::unique_ptr<Engine> engine_;  // last: its end calls into the others
};

}  // namespace attend::testing

#endif  // ATTEND_TESTS_SERVER_ENGINE_ENGINE_TEST_UTIL_H_
