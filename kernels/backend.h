// What runs attention: the Backend and Executor contracts and the registry of backends.
//
//   absl::StatusOr<std::unique_ptr<Backend>> backend = MakeBackend("cpu", {});
//   std::unique_ptr<Executor> executor = (*backend)->MakeExecutor().value();
//   BatchReport report;
//   absl::Status status = executor->Run({tasks}, &report);

#ifndef ATTEND_KERNELS_BACKEND_H_
#define ATTEND_KERNELS_BACKEND_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/attention.h"

namespace attend {

// Options of a task that a backend may or may not have. A backend lists those it honours; a task
// that uses another is refused by Supports(), never run without it.
enum class Feature : uint32_t {
  kFp32 = 1u << 0,
  kFp16 = 1u << 1,
  kBf16 = 1u << 2,
  kCausal = 1u << 3,
  kWindow = 1u << 4,
  kSoftcap = 1u << 5,
  kBias = 1u << 6,
  kAlibi = 1u << 7,
  kSinks = 1u << 8,
  kLse = 1u << 9,
  kGroupedHeads = 1u << 10,     // heads_q != heads_k
  kValueHeadDim = 1u << 11,     // head_dim_v != head_dim
  kSubnormalInputs = 1u << 12,  // 16-bit subnormal inputs are not flushed to zero
};

class FeatureSet {
 public:
  constexpr FeatureSet() = default;
  constexpr FeatureSet(std::initializer_list<Feature> features) {
    for (Feature feature : features) bits_ |= static_cast<uint32_t>(feature);
  }
  constexpr bool Has(Feature feature) const {
    return (bits_ & static_cast<uint32_t>(feature)) != 0;
  }
  constexpr void Add(Feature feature) { bits_ |= static_cast<uint32_t>(feature); }
  constexpr uint32_t bits() const { return bits_; }

 private:
  uint32_t bits_ = 0;
};

// Every option of the contract.
inline constexpr FeatureSet kAllFeatures = {
    Feature::kFp32,           Feature::kFp16,    Feature::kBf16,         Feature::kCausal,
    Feature::kWindow,         Feature::kSoftcap, Feature::kBias,         Feature::kAlibi,
    Feature::kSinks,          Feature::kLse,     Feature::kGroupedHeads, Feature::kValueHeadDim,
    Feature::kSubnormalInputs};

// Short stable names ("causal", "window", ...) for messages and GetServerInfo.
std::string_view Name(Feature feature);
std::vector<Feature> List(FeatureSet features);

// UNIMPLEMENTED naming the first option of `task` that is not in `features`.
absl::Status CheckFeatures(const AttentionTask& task, FeatureSet features,
                           std::string_view backend_name);

// Which tasks may share a batch. Opaque: only equality and hashing mean anything.
struct KernelClass {
  uint64_t key = 0;
  friend bool operator==(const KernelClass&, const KernelClass&) = default;
};

// Tasks of one KernelClass. Lengths, head counts, masks and scales may differ inside one batch.
struct AttentionBatch {
  absl::Span<const AttentionTask> tasks;
};

// One stage of a batch on the time base of its device: seconds since the backend was made, so that
// the stages of different executors can be compared. end == begin when the stage did not happen.
struct StageInterval {
  double begin_seconds = 0;
  double end_seconds = 0;
  double seconds() const { return end_seconds - begin_seconds; }
};

struct KernelLaunches {
  std::string_view kernel;  // static string from a closed set, for metric labels
  int64_t launches = 0;
};

// What one Run did. Filled on success; best effort on failure.
struct BatchReport {
  StageInterval copy_in;   // host to device
  StageInterval kernel;    // planning upload to last kernel's end
  StageInterval copy_out;  // device to host
  int64_t bytes_in = 0;    // copied to the device
  int64_t bytes_out = 0;
  int64_t workspace_bytes = 0;  // device or host memory beyond inputs and outputs
  std::vector<KernelLaunches> launches;
};

// One worker's stream, arena and events. Single-threaded: one call at a time.
class Executor {
 public:
  virtual ~Executor() = default;

  // Runs every task of the batch to its end: outputs are in place when it returns OK.
  // REQUIRES: every task passed Validate() and Backend::Supports(), all of one KernelClass.
  // RESOURCE_EXHAUSTED: the device had too little memory for this batch, nothing was written that
  // a retry would not overwrite; a smaller batch may pass. INTERNAL: the kernel failed; see
  // Backend::Healthy().
  virtual absl::Status Run(const AttentionBatch& batch, BatchReport* report) = 0;
};

// Host memory that the backend can read and write fastest (pinned on CUDA). Freed by destruction.
class Staging {
 public:
  virtual ~Staging() = default;
  virtual std::byte* data() const = 0;  // aligned to at least 256 bytes
  virtual size_t size() const = 0;
  virtual MemoryKind memory_kind() const = 0;
};

// Bytes; all 0 for a backend without a memory of its own.
struct DeviceMemoryStats {
  int64_t used = 0;      // in use by batches now
  int64_t reserved = 0;  // held from the device
  int64_t peak = 0;      // highest `used` so far
  int64_t limit = 0;     // most that may be reserved
  int64_t total = 0;     // of the device
  int64_t free = 0;      // of the device, other processes counted
};

struct DeviceInfo {
  int ordinal = 0;
  std::string name;          // "NVIDIA H200", or the CPU's name
  std::string architecture;  // "sm_90", or the instruction set in use ("avx512_bf16")
};

struct BackendOptions {
  int device = 0;                   // CUDA ordinal
  int threads = 0;                  // CPU: worker threads; 0 means one for each core it may use
  int64_t device_memory_limit = 0;  // bytes; 0 means 90 % of the device's free memory at start
};

// One way to run attention on one device. Const methods are thread-safe.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;  // its name in the registry
  virtual DeviceInfo device() const = 0;
  virtual FeatureSet Features() const = 0;

  // UNIMPLEMENTED naming the option that this backend lacks, or OK.
  // REQUIRES: Validate(task) is OK.
  virtual absl::Status Supports(const AttentionTask& task) const = 0;

  // REQUIRES: Supports(task) is OK.
  virtual KernelClass Classify(const AttentionTask& task) const = 0;

  // How many executors keep the device busy (CUDA: 3, so that copy-in, kernel and copy-out
  // overlap; CPU: 1).
  virtual int PreferredExecutors() const = 0;

  virtual absl::StatusOr<std::unique_ptr<Executor>> MakeExecutor() = 0;
  virtual absl::StatusOr<std::unique_ptr<Staging>> AllocateStaging(size_t bytes) = 0;

  // Device memory that running `task` alone would take: tensors not on the device and workspace.
  virtual int64_t DeviceBytes(const AttentionTask& task) const = 0;

  virtual DeviceMemoryStats MemoryStats() const = 0;

  // UNAVAILABLE after a device error that no later call can survive.
  virtual absl::Status Healthy() const = 0;

  // Every value that KernelLaunches::kernel can take, so that metrics exist before the first
  // launch.
  virtual std::vector<std::string_view> KernelNames() const = 0;
};

// One row of the registry.
struct BackendEntry {
  std::string_view name;
  std::string_view description;
  bool chosen_by_auto;  // may "auto" pick it
  absl::StatusOr<std::unique_ptr<Backend>> (*make)(const BackendOptions& options);
  int (*device_count)();  // devices it can drive on this host; 0 when none answers
};

// All backends of this build, best first: cuda (when built in), cpu, unfused ones, reference.
absl::Span<const BackendEntry> BackendRegistry();

// NOT_FOUND naming the choices when no backend has that name; UNAVAILABLE when its device does not
// answer. "auto" means the first row that may be chosen by itself and has a device.
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(std::string_view name,
                                                     const BackendOptions& options);

}  // namespace attend

#endif  // ATTEND_KERNELS_BACKEND_H_
