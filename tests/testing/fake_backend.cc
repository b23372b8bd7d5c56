#include "tests/testing/fake_backend.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "kernels/host_staging.h"

namespace attend::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kKernelName = "fake";

// Copies of an absl::Status share a count that ThreadSanitizer cannot see.
absl::Status Unshared(const absl::Status& status) {
  return absl::Status(status.code(), status.message());
}

}  // namespace

void FakeDevice::Hold() {
  const std::lock_guard lock(mutex_);
  holding_ = true;
  permits_ = 0;
}

void FakeDevice::ReleaseOne() {
  const std::lock_guard lock(mutex_);
  ++permits_;
  changed_.notify_all();
}

void FakeDevice::Release() {
  const std::lock_guard lock(mutex_);
  holding_ = false;
  changed_.notify_all();
}

void FakeDevice::AwaitRunning(int count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return waiting_ >= count; });
}

void FakeDevice::AwaitFinished(int count) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return static_cast<int>(runs_.size()) >= count; });
}

void FakeDevice::FailNext(absl::Status status) {
  const std::lock_guard lock(mutex_);
  failures_.push_back(std::move(status));
}

void FakeDevice::SetHealth(absl::Status health) {
  const std::lock_guard lock(mutex_);
  health_ = std::move(health);
}

std::vector<FakeRun> FakeDevice::runs() const {
  const std::lock_guard lock(mutex_);
  return runs_;
}

int64_t FakeDevice::staging_bytes() const {
  const std::lock_guard lock(mutex_);
  return staging_bytes_;
}

class FakeStaging final : public Staging {
 public:
  FakeStaging(std::shared_ptr<FakeDevice> device, std::unique_ptr<Staging> memory)
      : device_(std::move(device)), memory_(std::move(memory)) {}
  ~FakeStaging() override {
    const std::lock_guard lock(device_->mutex_);
    device_->staging_bytes_ -= static_cast<int64_t>(memory_->size());
  }

  std::byte* data() const override { return memory_->data(); }
  size_t size() const override { return memory_->size(); }
  MemoryKind memory_kind() const override { return memory_->memory_kind(); }

 private:
  const std::shared_ptr<FakeDevice> device_;
  const std::unique_ptr<Staging> memory_;
};

class FakeExecutor final : public Executor {
 public:
  FakeExecutor(std::shared_ptr<FakeDevice> device, int index, Clock::time_point epoch)
      : device_(std::move(device)), index_(index), epoch_(epoch) {}

  absl::Status Run(const AttentionBatch& batch, BatchReport* report) override {
    *report = BatchReport();
    report->copy_in.begin_seconds = report->copy_in.end_seconds = Now();
    report->kernel.begin_seconds = Now();
    absl::Status status = WaitAndJudge(batch);
    if (status.ok() && device_->compute) {
      for (const AttentionTask& task : batch.tasks) device_->compute(task);
    }
    report->kernel.end_seconds = Now();
    report->copy_out.begin_seconds = report->copy_out.end_seconds = report->kernel.end_seconds;
    report->launches = {{kKernelName, 1}};

    const std::lock_guard lock(device_->mutex_);
    device_->runs_.push_back({index_, {batch.tasks.begin(), batch.tasks.end()}, Unshared(status)});
    device_->changed_.notify_all();
    return status;
  }

 private:
  double Now() const { return std::chrono::duration<double>(Clock::now() - epoch_).count(); }

  absl::Status WaitAndJudge(const AttentionBatch& batch) {
    int64_t bytes = 0;
    if (device_->device_bytes) {
      for (const AttentionTask& task : batch.tasks) bytes += device_->device_bytes(task);
    }
    std::unique_lock lock(device_->mutex_);
    ++device_->waiting_;
    device_->changed_.notify_all();
    device_->changed_.wait(lock, [&] { return !device_->holding_ || device_->permits_ > 0; });
    if (device_->holding_) --device_->permits_;
    --device_->waiting_;
    if (bytes > device_->batch_bytes_limit) {
      return absl::ResourceExhaustedError("the fake device is too small for this batch");
    }
    if (device_->failures_.empty()) {
      return device_->judge ? device_->judge(batch) : absl::OkStatus();
    }
    absl::Status status = std::move(device_->failures_.front());
    device_->failures_.pop_front();
    return status;
  }

  const std::shared_ptr<FakeDevice> device_;
  const int index_;
  const Clock::time_point epoch_;
};

class FakeBackend final : public Backend {
 public:
  FakeBackend(std::shared_ptr<FakeDevice> device, std::string_view name)
      : device_(std::move(device)), name_(name) {}

  std::string_view name() const override { return name_; }
  DeviceInfo device() const override { return {0, "fake device", "fake"}; }
  FeatureSet Features() const override { return device_->features; }
  absl::Status Supports(const AttentionTask& task) const override {
    return CheckFeatures(task, device_->features, name_);
  }
  KernelClass Classify(const AttentionTask& task) const override {
    if (device_->classify) return device_->classify(task);
    return {static_cast<uint64_t>(task.dtype())};
  }
  int PreferredExecutors() const override { return device_->preferred_executors; }

  absl::StatusOr<std::unique_ptr<Executor>> MakeExecutor() override {
    const std::lock_guard lock(device_->mutex_);
    return std::make_unique<FakeExecutor>(device_, device_->executors_++, epoch_);
  }

  absl::StatusOr<std::unique_ptr<Staging>> AllocateStaging(size_t bytes) override {
    const std::lock_guard lock(device_->mutex_);
    const int64_t sum = device_->staging_bytes_ + static_cast<int64_t>(bytes);
    if (sum > device_->staging_limit) {
      return absl::ResourceExhaustedError("the fake host has no more staging");
    }
    absl::StatusOr<std::unique_ptr<Staging>> memory = MakeHostStaging(bytes);
    if (!memory.ok()) return memory.status();
    device_->staging_bytes_ = sum;
    return std::make_unique<FakeStaging>(device_, *std::move(memory));
  }

  int64_t DeviceBytes(const AttentionTask& task) const override {
    return device_->device_bytes ? device_->device_bytes(task) : 0;
  }
  DeviceMemoryStats MemoryStats() const override { return {}; }
  absl::Status Healthy() const override {
    const std::lock_guard lock(device_->mutex_);
    return Unshared(device_->health_);
  }
  std::vector<std::string_view> KernelNames() const override { return {kKernelName}; }

 private:
  const std::shared_ptr<FakeDevice> device_;
  const std::string name_;
  const Clock::time_point epoch_ = Clock::now();
};

std::unique_ptr<Backend> MakeFakeBackend(std::shared_ptr<FakeDevice> device,
                                         std::string_view name) {
  return std::make_unique<FakeBackend>(std::move(device), name);
}

}  // namespace attend::testing
