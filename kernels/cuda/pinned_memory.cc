#include "kernels/cuda/pinned_memory.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "kernels/cuda/cuda_status.h"

namespace attend::cuda {
namespace {

class PinnedStaging final : public Staging {
 public:
  PinnedStaging(std::byte* data, size_t size, std::shared_ptr<PinnedRanges> ranges)
      : data_(data), size_(size), ranges_(std::move(ranges)) {
    ranges_->Add({data_, data_ + size_});
  }
  ~PinnedStaging() override {
    ranges_->Remove(data_);
    cudaFreeHost(data_);
  }
  std::byte* data() const override { return data_; }
  size_t size() const override { return size_; }
  MemoryKind memory_kind() const override { return MemoryKind::kPinned; }

 private:
  std::byte* const data_;
  const size_t size_;
  const std::shared_ptr<PinnedRanges> ranges_;
};

}  // namespace

void PinnedRanges::Add(HostRange range) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto ranges = std::make_shared<HostRanges>(*ranges_);
  ranges->insert(
      std::upper_bound(ranges->begin(), ranges->end(), range,
                       [](const HostRange& a, const HostRange& b) { return a.begin < b.begin; }),
      range);
  ranges_ = std::move(ranges);
}

void PinnedRanges::Remove(const std::byte* begin) {
  const std::lock_guard<std::mutex> lock(mutex_);
  auto ranges = std::make_shared<HostRanges>(*ranges_);
  ranges->erase(std::remove_if(ranges->begin(), ranges->end(),
                               [begin](const HostRange& range) { return range.begin == begin; }),
                ranges->end());
  ranges_ = std::move(ranges);
}

std::shared_ptr<const HostRanges> PinnedRanges::Snapshot() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ranges_;
}

absl::StatusOr<std::unique_ptr<Staging>> MakePinnedStaging(int device, size_t bytes,
                                                           std::shared_ptr<PinnedRanges> ranges) {
  if (const cudaError_t error = cudaSetDevice(device); error != cudaSuccess) {
    return ToStatus(error, "cudaSetDevice");
  }
  void* data = nullptr;
  const cudaError_t error = cudaHostAlloc(&data, std::max<size_t>(bytes, 1), cudaHostAllocPortable);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return ToStatus(error, "page-locked staging");
  }
  return std::make_unique<PinnedStaging>(static_cast<std::byte*>(data), bytes, std::move(ranges));
}

}  // namespace attend::cuda
