#include "kernels/cpu/cpu_backend.h"

#include <chrono>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_executor.h"
#include "kernels/cpu/cpu_name.h"
#include "kernels/cpu/kernel_table.h"
#include "kernels/cpu/tile.h"
#include "kernels/host_staging.h"
#include "kernels/plan.h"
#include "oneapi/tbb/global_control.h"
#include "oneapi/tbb/info.h"

namespace attend {
namespace cpu {
namespace {

constexpr char kIsaVariable[] = "ATTEND_CPU_ISA";

class CpuBackend final : public Backend {
 public:
  CpuBackend(Isa isa, int threads)
      : table_(*Kernels(isa)), threads_(threads), device_{0, CpuName(), Name(isa)} {
    // Without this TBB would never start more threads than there are cores.
    if (threads > oneapi::tbb::info::default_concurrency()) {
      more_threads_.emplace(oneapi::tbb::global_control::max_allowed_parallelism,
                            static_cast<size_t>(threads));
    }
  }

  std::string_view name() const override { return "cpu"; }
  DeviceInfo device() const override { return device_; }

  FeatureSet Features() const override {
    if (!table_.flushes_subnormal_pairs) return kAllFeatures;
    return {Feature::kFp32,   Feature::kFp16,    Feature::kBf16,         Feature::kCausal,
            Feature::kWindow, Feature::kSoftcap, Feature::kBias,         Feature::kAlibi,
            Feature::kSinks,  Feature::kLse,     Feature::kGroupedHeads, Feature::kValueHeadDim};
  }

  absl::Status Supports(const AttentionTask& task) const override {
    if (absl::Status status = CheckOnHost(task, name()); !status.ok()) return status;
    return CheckFeatures(task, Features(), name());
  }

  // The three dtypes run different kernels; everything else may share a batch.
  KernelClass Classify(const AttentionTask& task) const override {
    return {static_cast<uint64_t>(task.dtype())};
  }

  int PreferredExecutors() const override { return 1; }

  absl::StatusOr<std::unique_ptr<Executor>> MakeExecutor() override {
    return std::make_unique<CpuExecutor>(table_, threads_, epoch_);
  }
  absl::StatusOr<std::unique_ptr<Staging>> AllocateStaging(size_t bytes) override {
    return MakeHostStaging(bytes);
  }

  // The partial results of a task whose keys are cut into chunks.
  int64_t DeviceBytes(const AttentionTask& task) const override {
    const TaskPlan plan = PlanTask(task, PlanRuleOf(table_));
    if (plan.chunks <= 1) return 0;
    const int64_t row = (PaddedColumns(table_, task.head_dim_v()) + 2) * int64_t{sizeof(float)};
    const std::optional<int64_t> rows = CheckedMultiply(plan.heads * plan.chunks, plan.rows);
    const std::optional<int64_t> bytes = rows ? CheckedMultiply(*rows, row) : std::nullopt;
    return bytes.value_or(INT64_MAX);
  }

  DeviceMemoryStats MemoryStats() const override { return {}; }
  absl::Status Healthy() const override { return absl::OkStatus(); }
  std::vector<std::string_view> KernelNames() const override { return {table_.kernel_name}; }

 private:
  const KernelTable& table_;
  const int threads_;
  const DeviceInfo device_;
  const std::chrono::steady_clock::time_point epoch_ = std::chrono::steady_clock::now();
  std::optional<oneapi::tbb::global_control> more_threads_;
};

absl::StatusOr<Isa> WantedIsa() {
  const char* wanted = std::getenv(kIsaVariable);  // NOLINT(concurrency-mt-unsafe): nobody sets it
  if (wanted == nullptr || *wanted == '\0') return BestIsa();
  std::string choices;
  for (int i = 0; i < kIsaCount; ++i) {
    const Isa isa = static_cast<Isa>(i);
    if (std::string_view(wanted) == Name(isa)) return isa;
    absl::StrAppend(&choices, i > 0 ? ", " : "", Name(isa));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(kIsaVariable, ": \"", wanted, "\" is none of ", choices));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackendFor(Isa isa, const BackendOptions& options) {
  if (!Supported(isa)) {
    return absl::UnavailableError(absl::StrCat("cpu: this host does not run ", Name(isa)));
  }
  if (options.threads < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cpu: threads is ", options.threads, ", must not be negative"));
  }
  const int threads =
      options.threads > 0 ? options.threads : oneapi::tbb::info::default_concurrency();
  return std::make_unique<CpuBackend>(isa, threads);
}

}  // namespace cpu

absl::StatusOr<std::unique_ptr<Backend>> MakeCpuBackend(const BackendOptions& options) {
  absl::StatusOr<cpu::Isa> isa = cpu::WantedIsa();
  if (!isa.ok()) return std::move(isa).status();
  return cpu::MakeCpuBackendFor(*isa, options);
}

int CpuDeviceCount() { return 1; }

}  // namespace attend
