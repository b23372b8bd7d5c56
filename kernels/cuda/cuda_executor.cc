#include "kernels/cuda/cuda_executor.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/cleanup/cleanup.h"

namespace attend::cuda {
namespace {

// A wait that sleeps wakes 44 us after the launch at the median, one that spins 10 us (H200): so
// spin for what the sleep would add. A short batch gets the low latency, a long one costs no core.
constexpr std::chrono::microseconds kSpin{40};

// Uploads start small and double: a plan is a few hundred bytes a task.
constexpr size_t kFirstUpload = size_t{64} << 10;

size_t AlignUp(size_t bytes) {
  return (bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
}

}  // namespace

int FamilyOf(const ForwardFamilies& families, const AttentionTask& task) {
  for (size_t i = 0; i < families.size(); ++i) {
    if (families[i]->Accepts(task)) return static_cast<int>(i);
  }
  return -1;
}

cudaError_t WaitForEvent(cudaEvent_t event) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    const cudaError_t error = cudaEventQuery(event);
    if (error != cudaErrorNotReady) return error;
  } while (std::chrono::steady_clock::now() < deadline);
  return cudaEventSynchronize(event);
}

CudaExecutor::CudaExecutor(DeviceContext* context, ForwardFamilies families)
    : context_(context), families_(std::move(families)), arena_(context->memory->MakeArena()) {}

absl::StatusOr<std::unique_ptr<Executor>> CudaExecutor::Make(DeviceContext* context,
                                                             ForwardFamilies families) {
  std::unique_ptr<CudaExecutor> executor(new CudaExecutor(context, std::move(families)));
  cudaError_t error = cudaSetDevice(context->ordinal);
  if (error == cudaSuccess) {
    error = cudaStreamCreateWithFlags(&executor->stream_, cudaStreamNonBlocking);
  }
  for (cudaEvent_t& event : executor->events_) {
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(&event, cudaEventBlockingSync);
  }
  if (error != cudaSuccess) return context->health.Check(error, "making a stream");
  if (absl::Status status = executor->GrowUpload(kFirstUpload); !status.ok()) return status;
  return std::unique_ptr<Executor>(std::move(executor));
}

CudaExecutor::~CudaExecutor() {
  cudaSetDevice(context_->ordinal);
  if (stream_ != nullptr) {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  for (cudaEvent_t event : events_) {
    if (event != nullptr) cudaEventDestroy(event);
  }
  if (upload_ != nullptr) cudaFreeHost(upload_);
}

absl::Status CudaExecutor::GrowUpload(size_t bytes) {
  if (bytes <= upload_capacity_) return absl::OkStatus();
  const size_t capacity = std::max(bytes, upload_capacity_ * 2);
  if (upload_ != nullptr) cudaFreeHost(upload_);
  upload_ = nullptr;
  upload_capacity_ = 0;
  void* data = nullptr;
  if (const cudaError_t error = cudaHostAlloc(&data, capacity, cudaHostAllocDefault);
      error != cudaSuccess) {
    return context_->health.Check(error, "page-locked memory for the plan");
  }
  upload_ = static_cast<std::byte*>(data);
  upload_capacity_ = capacity;
  return absl::OkStatus();
}

absl::Status CudaExecutor::Split(absl::Span<const AttentionTask> tasks) {
  group_count_ = 0;
  group_of_.clear();
  for (const AttentionTask& task : tasks) {
    const int family = FamilyOf(families_, task);
    if (family < 0) return absl::InternalError("a task that no kernel family accepts was queued");
    const uint32_t variant = families_[static_cast<size_t>(family)]->Variant(task);
    size_t i = 0;
    while (i < group_count_ && (groups_[i].family != family || groups_[i].variant != variant)) ++i;
    if (i == group_count_) {
      if (i == groups_.size()) groups_.emplace_back();
      groups_[i].family = family;
      groups_[i].variant = variant;
      groups_[i].tasks.clear();
      groups_[i].placed.clear();
      ++group_count_;
    }
    groups_[i].tasks.push_back(task);
    group_of_.push_back(i);
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::Run(const AttentionBatch& batch, BatchReport* report) {
  *report = BatchReport();
  if (batch.tasks.empty()) return absl::OkStatus();
  if (absl::Status status = context_->health.Get(); !status.ok()) return status;
  if (const cudaError_t error = cudaSetDevice(context_->ordinal); error != cudaSuccess) {
    return context_->health.Check(error, "cudaSetDevice");
  }
  if (absl::Status status = Split(batch.tasks); !status.ok()) return status;
  placement_.Plan(batch.tasks, *context_->pinned->Snapshot());

  // Groups run one after another on the stream and share one workspace.
  size_t upload_bytes = 0;
  size_t workspace_bytes = 0;
  for (size_t i = 0; i < group_count_; ++i) {
    Group& group = groups_[i];
    group.size = families_[static_cast<size_t>(group.family)]->Measure(group.tasks);
    group.upload_offset = upload_bytes;
    upload_bytes += AlignUp(group.size.upload_bytes);
    workspace_bytes = std::max(workspace_bytes, AlignUp(group.size.workspace_bytes));
  }
  if (absl::Status status = GrowUpload(upload_bytes); !status.ok()) return status;
  absl::StatusOr<std::byte*> base =
      arena_->Acquire(placement_.device_bytes() + upload_bytes + workspace_bytes);
  if (!base.ok()) return base.status();
  const absl::Cleanup release = [this] { arena_->Release(); };
  report->workspace_bytes = static_cast<int64_t>(upload_bytes + workspace_bytes);

  absl::StatusOr<std::shared_ptr<const DeviceClock::Anchor>> anchor = context_->clock->Current();
  if (!anchor.ok()) return anchor.status();
  absl::Status status = Enqueue(batch.tasks, *base, upload_bytes, report);
  if (status.ok()) status = context_->health.Check(WaitForEvent(events_[kCopiedOut]), "batch");
  if (!status.ok()) {
    // What was enqueued still uses the arena; its own result no longer matters.
    context_->health.Check(cudaStreamSynchronize(stream_), "batch").IgnoreError();
    return status;
  }
  return FillReport(**anchor, report);
}

absl::Status CudaExecutor::Enqueue(absl::Span<const AttentionTask> tasks, std::byte* base,
                                   size_t upload_bytes, BatchReport* report) {
  std::byte* const upload_device = base + placement_.device_bytes();
  std::byte* const workspace = upload_device + upload_bytes;
  if (absl::Status status = Record(kStart); !status.ok()) return status;
  if (absl::Status status = Copies(placement_.copies_in(), base, cudaMemcpyHostToDevice);
      !status.ok()) {
    return status;
  }
  if (absl::Status status = Record(kCopiedIn); !status.ok()) return status;

  // The host plans while the tensors travel.
  placement_.Resolve(tasks, base, &placed_);
  for (size_t i = 0; i < tasks.size(); ++i) groups_[group_of_[i]].placed.push_back(placed_[i]);
  for (size_t i = 0; i < group_count_; ++i) {
    const Group& group = groups_[i];
    ForwardFamily& family = *families_[static_cast<size_t>(group.family)];
    // A family remembers one plan: with several groups, the last one measured.
    if (group_count_ > 1) family.Measure(group.tasks);
    std::byte* const host = upload_ + group.upload_offset;
    std::byte* const device = upload_device + group.upload_offset;
    family.Fill(group.tasks, group.placed, host, device, workspace);
    cudaError_t error = cudaSuccess;
    if (group.size.upload_bytes > 0) {
      error =
          cudaMemcpyAsync(device, host, group.size.upload_bytes, cudaMemcpyHostToDevice, stream_);
    }
    if (error == cudaSuccess) error = family.Launch(stream_, &report->launches);
    if (error != cudaSuccess) return context_->health.Check(error, "launch");
  }
  if (absl::Status status = Record(kComputed); !status.ok()) return status;
  if (absl::Status status = Copies(placement_.copies_out(), base, cudaMemcpyDeviceToHost);
      !status.ok()) {
    return status;
  }
  return Record(kCopiedOut);
}

absl::Status CudaExecutor::Copies(const std::vector<Copy>& copies, std::byte* base,
                                  cudaMemcpyKind kind) {
  const bool in = kind == cudaMemcpyHostToDevice;
  for (const Copy& copy : copies) {
    std::byte* const device = base + copy.device_offset;
    std::byte* const to = in ? device : copy.host;
    const std::byte* const from = in ? copy.host : device;
    const cudaError_t error =
        copy.height == 1 ? cudaMemcpyAsync(to, from, copy.width, kind, stream_)
                         : cudaMemcpy2DAsync(to, in ? copy.device_pitch : copy.host_pitch, from,
                                             in ? copy.host_pitch : copy.device_pitch, copy.width,
                                             copy.height, kind, stream_);
    if (error != cudaSuccess) {
      return context_->health.Check(error, in ? "copy to the device" : "copy from the device");
    }
  }
  return absl::OkStatus();
}

absl::Status CudaExecutor::Record(Mark mark) {
  return context_->health.Check(cudaEventRecord(events_[mark], stream_), "cudaEventRecord");
}

absl::Status CudaExecutor::FillReport(const DeviceClock::Anchor& anchor, BatchReport* report) {
  std::array<double, kMarks> seconds = {};
  for (size_t i = 0; i < kMarks; ++i) {
    const absl::StatusOr<double> time = DeviceClock::Seconds(anchor, events_[i]);
    if (!time.ok()) return time.status();
    seconds[i] = *time;
  }
  // Without copies the marks still stand a few hundred nanoseconds apart; such a stage was not.
  report->copy_in = {seconds[kStart], seconds[kCopiedIn]};
  if (placement_.copies_in().empty()) report->copy_in.end_seconds = seconds[kStart];
  report->kernel = {seconds[kCopiedIn], seconds[kComputed]};
  report->copy_out = {seconds[kComputed], seconds[kCopiedOut]};
  if (placement_.copies_out().empty()) report->copy_out.end_seconds = seconds[kComputed];
  report->bytes_in = static_cast<int64_t>(placement_.bytes_in());
  report->bytes_out = static_cast<int64_t>(placement_.bytes_out());
  return absl::OkStatus();
}

}  // namespace attend::cuda
