#include "kernels/unfused/unfused_backend.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "hwy/targets.h"
#include "kernels/host_staging.h"
#include "kernels/unfused/unfused_attention.h"
#include "oneapi/tbb/task_arena.h"

namespace attend {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kName = "unfused-cpu";
constexpr std::string_view kKernelName = "unfused_cpu";

int64_t FreeHostBytes() {
  const int64_t pages = sysconf(_SC_AVPHYS_PAGES);
  const int64_t page = sysconf(_SC_PAGESIZE);
  return CheckedMultiply(pages, page).value_or(INT64_MAX);
}

class UnfusedExecutor final : public Executor {
 public:
  UnfusedExecutor(int threads, int64_t limit, Clock::time_point epoch)
      : arena_(threads == 0 ? oneapi::tbb::task_arena::automatic : threads),
        limit_(limit),
        epoch_(epoch) {}

  absl::Status Run(const AttentionBatch& batch, BatchReport* report) override {
    *report = BatchReport();
    report->kernel.begin_seconds = Now();
    absl::Status status;
    arena_.execute([&] {
      for (const AttentionTask& task : batch.tasks) {
        status = attention_.Run(task, limit_);
        if (!status.ok()) return;
        report->workspace_bytes =
            std::max(report->workspace_bytes, unfused::WorkspaceBytes(task).value_or(0));
      }
    });
    report->kernel.end_seconds = Now();
    report->launches = {{kKernelName, static_cast<int64_t>(batch.tasks.size())}};
    return status;
  }

 private:
  double Now() const { return std::chrono::duration<double>(Clock::now() - epoch_).count(); }

  oneapi::tbb::task_arena arena_;
  const int64_t limit_;
  const Clock::time_point epoch_;
  unfused::UnfusedAttention attention_;
};

class UnfusedBackend final : public Backend {
 public:
  explicit UnfusedBackend(const BackendOptions& options)
      : threads_(options.threads),
        limit_(options.device_memory_limit > 0 ? options.device_memory_limit
                                               : FreeHostBytes() / 4 * 3) {}

  std::string_view name() const override { return kName; }
  DeviceInfo device() const override {
    return {0, "CPU", hwy::TargetName(hwy::SupportedTargets() & -hwy::SupportedTargets())};
  }
  FeatureSet Features() const override { return kAllFeatures; }
  absl::Status Supports(const AttentionTask& task) const override {
    return CheckOnHost(task, kName);
  }
  KernelClass Classify(const AttentionTask&) const override { return {}; }
  int PreferredExecutors() const override { return 1; }
  absl::StatusOr<std::unique_ptr<Executor>> MakeExecutor() override {
    return std::make_unique<UnfusedExecutor>(threads_, limit_, epoch_);
  }
  absl::StatusOr<std::unique_ptr<Staging>> AllocateStaging(size_t bytes) override {
    return MakeHostStaging(bytes);
  }
  int64_t DeviceBytes(const AttentionTask&) const override { return 0; }
  DeviceMemoryStats MemoryStats() const override { return {}; }
  absl::Status Healthy() const override { return absl::OkStatus(); }
  std::vector<std::string_view> KernelNames() const override { return {kKernelName}; }

 private:
  const int threads_;
  const int64_t limit_;
  const Clock::time_point epoch_ = Clock::now();
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeUnfusedCpuBackend(const BackendOptions& options) {
  if (options.threads < 0) {
    return absl::InvalidArgumentError(absl::StrCat("threads is ", options.threads, ", below 0"));
  }
  return std::make_unique<UnfusedBackend>(options);
}

int UnfusedCpuDeviceCount() { return 1; }

}  // namespace attend
