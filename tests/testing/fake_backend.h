// A backend that a test directs: it can hold batches, fail them, run out of memory or fall sick,
// and remembers what it was given. By default it computes nothing and succeeds at once.
//
//   auto device = std::make_shared<FakeDevice>();
//   auto engine = Engine::Create(MakeFakeBackend(device), options, &observer);
//   device->Hold();                    // batches stop inside Run ...
//   ... submit ...
//   device->AwaitRunning(1);           // ... until one is there (no sleep) ...
//   device->Release();                 // ... and may go on
//   EXPECT_EQ(device->runs()[0].tasks.size(), 1u);

#ifndef ATTEND_TESTS_TESTING_FAKE_BACKEND_H_
#define ATTEND_TESTS_TESTING_FAKE_BACKEND_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace attend::testing {

// One call of Executor::Run.
struct FakeRun {
  int executor = 0;                  // 0, 1, ... in the order in which they were made
  std::vector<AttentionTask> tasks;  // views only: the memory may be gone
  absl::Status status;               // what Run answered
};

// What the test and the backend share. Thread-safe; outlives the backend by shared ownership.
class FakeDevice {
 public:
  // Set these before the backend is used.
  FeatureSet features = kAllFeatures;
  int preferred_executors = 1;
  std::function<KernelClass(const AttentionTask&)> classify;  // default: by dtype
  std::function<int64_t(const AttentionTask&)> device_bytes;  // default: 0
  std::function<void(const AttentionTask&)> compute;          // default: nothing
  // What Run answers, by its tasks, when no FailNext order stands. Default: OK.
  std::function<absl::Status(const AttentionBatch&)> judge;
  int64_t batch_bytes_limit = INT64_MAX;  // a batch of more device_bytes is RESOURCE_EXHAUSTED
  int64_t staging_limit = INT64_MAX;      // AllocateStaging past this sum is RESOURCE_EXHAUSTED

  // From now on Run waits until released, one batch (ReleaseOne) or all and for good (Release).
  void Hold();
  void ReleaseOne();
  void Release();
  // Returns when `count` calls of Run are waiting at the same time.
  void AwaitRunning(int count);
  // Returns when `count` calls of Run have ended since the start.
  void AwaitFinished(int count);

  // The next Run without such an order answers `status` instead of computing.
  void FailNext(absl::Status status);
  void SetHealth(absl::Status health);

  std::vector<FakeRun> runs() const;  // finished ones, in the order of their ends
  int64_t staging_bytes() const;      // allocated now

 private:
  friend class FakeExecutor;
  friend class FakeBackend;
  friend class FakeStaging;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool holding_ = false;
  int permits_ = 0;
  int waiting_ = 0;
  int executors_ = 0;
  int64_t staging_bytes_ = 0;
  std::deque<absl::Status> failures_;
  absl::Status health_;
  std::vector<FakeRun> runs_;
};

// `name` is what Backend::name() answers.
std::unique_ptr<Backend> MakeFakeBackend(std::shared_ptr<FakeDevice> device,
                                         std::string_view name = "fake");

}  // namespace attend::testing

#endif  // ATTEND_TESTS_TESTING_FAKE_BACKEND_H_
