#include "kernels/reference/reference_backend.h"

#include <algorithm>
#include <chrono>

#include "kernels/host_staging.h"
#include "kernels/reference/reference.h"

namespace attend {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kName = "reference";

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// What the oracle holds while it works: a kv head in double and a row of scores.
int64_t WorkspaceBytes(const AttentionTask& task) {
  return static_cast<int64_t>(sizeof(double)) *
         (task.seqlen_k * (task.head_dim() + task.head_dim_v() + 2) +
          task.padded_q() * task.heads_q() * (task.head_dim_v() + 2));
}

class ReferenceExecutor final : public Executor {
 public:
  explicit ReferenceExecutor(Clock::time_point epoch) : epoch_(epoch) {}

  absl::Status Run(const AttentionBatch& batch, BatchReport* report) override {
    *report = BatchReport();
    report->kernel.begin_seconds = SecondsSince(epoch_);
    for (const AttentionTask& task : batch.tasks) {
      reference::Run(task);
      report->workspace_bytes = std::max(report->workspace_bytes, WorkspaceBytes(task));
    }
    report->kernel.end_seconds = SecondsSince(epoch_);
    report->launches = {{kName, 1}};
    return absl::OkStatus();
  }

 private:
  const Clock::time_point epoch_;
};

class ReferenceBackend final : public Backend {
 public:
  std::string_view name() const override { return kName; }
  DeviceInfo device() const override { return {0, "CPU", "double precision"}; }
  FeatureSet Features() const override { return kAllFeatures; }
  absl::Status Supports(const AttentionTask& task) const override {
    return CheckOnHost(task, kName);
  }
  KernelClass Classify(const AttentionTask&) const override { return {}; }
  int PreferredExecutors() const override { return 1; }
  absl::StatusOr<std::unique_ptr<Executor>> MakeExecutor() override {
    return std::make_unique<ReferenceExecutor>(epoch_);
  }
  absl::StatusOr<std::unique_ptr<Staging>> AllocateStaging(size_t bytes) override {
    return MakeHostStaging(bytes);
  }
  int64_t DeviceBytes(const AttentionTask&) const override { return 0; }
  DeviceMemoryStats MemoryStats() const override { return {}; }
  absl::Status Healthy() const override { return absl::OkStatus(); }
  std::vector<std::string_view> KernelNames() const override { return {kName}; }

 private:
  const Clock::time_point epoch_ = Clock::now();
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeReferenceBackend(const BackendOptions&) {
  return std::make_unique<ReferenceBackend>();
}

int ReferenceDeviceCount() { return 1; }

}  // namespace attend
