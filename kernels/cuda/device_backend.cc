#include "kernels/cuda/device_backend.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/device_clock.h"
#include "kernels/cuda/device_memory.h"
#include "kernels/cuda/pinned_memory.h"
#include "kernels/cuda/placement.h"

namespace attend::cuda {
namespace {

// One copies in, one computes, one copies out.
constexpr int kExecutors = 3;

// Share of the free memory taken when no limit is given: room for the context and for growth of
// other processes.
constexpr double kDefaultMemoryShare = 0.9;

// Operations in the upper bits of a KernelClass.
constexpr uint64_t kForward = 1;

class CudaMalloc final : public BlockSource {
 public:
  explicit CudaMalloc(DeviceHealth* health) : health_(health) {}
  absl::StatusOr<std::byte*> Allocate(size_t bytes) override {
    void* block = nullptr;
    if (const cudaError_t error = cudaMalloc(&block, bytes); error != cudaSuccess) {
      return health_->Check(error, absl::StrCat("device memory, ", bytes, " bytes"));
    }
    return static_cast<std::byte*>(block);
  }
  void Free(std::byte* block) override { cudaFree(block); }

 private:
  DeviceHealth* const health_;
};

absl::StatusOr<Capability> Query(int ordinal) {
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, ordinal);
      error != cudaSuccess) {
    cudaGetLastError();
    return absl::UnavailableError(ToStatus(error, absl::StrCat("CUDA device ", ordinal)).message());
  }
  Capability capability;
  capability.major = properties.major;
  capability.minor = properties.minor;
  capability.sm_count = properties.multiProcessorCount;
  capability.total_memory = properties.totalGlobalMem;
  capability.name = properties.name;
  return capability;
}

class DeviceBackend final : public Backend {
 public:
  DeviceBackend(const DeviceBackendKind& kind, DeviceInfo info, Capability capability)
      : kind_(kind), info_(std::move(info)), capability_(std::move(capability)) {
    context_.ordinal = info_.ordinal;
  }

  absl::Status Start(int64_t memory_limit) {
    cudaError_t error = cudaSetDevice(info_.ordinal);
    size_t free = 0;
    size_t total = 0;
    if (error == cudaSuccess) error = cudaMemGetInfo(&free, &total);
    if (error != cudaSuccess) {
      cudaGetLastError();
      return absl::UnavailableError(
          ToStatus(error, absl::StrCat("CUDA device ", info_.ordinal)).message());
    }
    if (memory_limit <= 0) {
      memory_limit = static_cast<int64_t>(static_cast<double>(free) * kDefaultMemoryShare);
    }
    absl::StatusOr<std::unique_ptr<DeviceClock>> clock = DeviceClock::Make();
    if (!clock.ok()) return clock.status();
    context_.clock = *std::move(clock);
    families_ = kind_.make_families(capability_);
    context_.memory = std::make_unique<DeviceMemory>(std::make_unique<CudaMalloc>(&context_.health),
                                                     memory_limit);
    return absl::OkStatus();
  }

  std::string_view name() const override { return kind_.name; }
  DeviceInfo device() const override { return info_; }
  FeatureSet Features() const override { return kAllFeatures; }

  absl::Status Supports(const AttentionTask& task) const override {
    if (absl::Status status = CheckFeatures(task, Features(), name()); !status.ok()) return status;
    if (FamilyOf(families_, task) < 0) {
      return absl::UnimplementedError(
          absl::StrCat(absl::string_view(kind_.name.data(), kind_.name.size()),
                       ": no kernel takes a task of this size"));
    }
    return absl::OkStatus();
  }

  KernelClass Classify(const AttentionTask& task) const override {
    const int family = FamilyOf(families_, task);
    return {kForward << 56 | static_cast<uint64_t>(family) << 32 |
            families_[static_cast<size_t>(family)]->Variant(task)};
  }

  int PreferredExecutors() const override { return kExecutors; }

  absl::StatusOr<std::unique_ptr<Executor>> MakeExecutor() override {
    // On the engine's thread, where no context may be current yet: families ask the driver.
    if (const cudaError_t error = cudaSetDevice(info_.ordinal); error != cudaSuccess) {
      return context_.health.Check(error, "cudaSetDevice");
    }
    return CudaExecutor::Make(&context_, kind_.make_families(capability_));
  }

  absl::StatusOr<std::unique_ptr<Staging>> AllocateStaging(size_t bytes) override {
    return MakePinnedStaging(info_.ordinal, bytes, context_.pinned);
  }

  int64_t DeviceBytes(const AttentionTask& task) const override {
    const int family = FamilyOf(families_, task);
    if (family < 0) return 0;
    const std::lock_guard<std::mutex> lock(measure_mutex_);
    measure_placement_.Plan({&task, 1}, {});
    const LaunchSize size = families_[static_cast<size_t>(family)]->Measure({&task, 1});
    return static_cast<int64_t>(measure_placement_.device_bytes() + size.upload_bytes +
                                size.workspace_bytes + 2 * kDeviceAlignment);
  }

  DeviceMemoryStats MemoryStats() const override {
    DeviceMemoryStats stats = context_.memory->Stats();
    size_t free = 0;
    size_t total = 0;
    if (cudaSetDevice(info_.ordinal) == cudaSuccess &&
        cudaMemGetInfo(&free, &total) == cudaSuccess) {
      stats.free = static_cast<int64_t>(free);
      stats.total = static_cast<int64_t>(total);
    } else {
      cudaGetLastError();
      stats.total = static_cast<int64_t>(capability_.total_memory);
    }
    return stats;
  }

  absl::Status Healthy() const override { return context_.health.Get(); }

  std::vector<std::string_view> KernelNames() const override {
    return {kind_.kernel_names.begin(), kind_.kernel_names.end()};
  }

 private:
  const DeviceBackendKind kind_;
  const DeviceInfo info_;
  const Capability capability_;
  DeviceContext context_;
  ForwardFamilies families_;  // made by Start(), for questions; executors have their own

  mutable std::mutex measure_mutex_;  // guards Measure() of families_ and:
  mutable Placement measure_placement_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeDeviceBackend(const BackendOptions& options,
                                                           const DeviceBackendKind& kind) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess || count == 0) {
    cudaGetLastError();
    return absl::UnavailableError(
        absl::StrCat("no CUDA device answers: ",
                     error == cudaSuccess ? "none present" : cudaGetErrorString(error)));
  }
  if (options.device < 0 || options.device >= count) {
    return absl::UnavailableError(
        absl::StrCat("no CUDA device ", options.device, "; this host has ", count));
  }
  absl::StatusOr<Capability> capability = Query(options.device);
  if (!capability.ok()) return capability.status();
  if (capability->major < kOldestMajor) {
    return absl::UnavailableError(absl::StrCat("CUDA device ", options.device, " (",
                                               capability->name, ") has compute capability ",
                                               capability->major, ".", capability->minor,
                                               "; the oldest supported is ", kOldestMajor, ".0"));
  }
  DeviceInfo info;
  info.ordinal = options.device;
  info.name = capability->name;
  info.architecture = absl::StrCat("sm_", capability->major, capability->minor);
  auto backend = std::make_unique<DeviceBackend>(kind, std::move(info), *std::move(capability));
  if (absl::Status status = backend->Start(options.device_memory_limit); !status.ok()) {
    return status;
  }
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace attend::cuda
