#include <cuda_runtime_api.h>

#include <memory>

#include "absl/strings/str_cat.h"
#include "tests/bench/device_tensors.h"

namespace attend::bench {
namespace {

class CudaBuffer final : public DeviceBuffer {
 public:
  CudaBuffer(int ordinal, void* data) : ordinal_(ordinal), data_(data) {}
  ~CudaBuffer() override {
    cudaSetDevice(ordinal_);
    cudaFree(data_);
  }
  void* data() const override { return data_; }
  MemoryKind memory() const override { return MemoryKind::kDevice; }
  absl::Status CopyIn(const void* host, size_t bytes) override {
    const cudaError_t error = cudaMemcpy(data_, host, bytes, cudaMemcpyHostToDevice);
    if (error != cudaSuccess) return absl::InternalError(cudaGetErrorString(error));
    return absl::OkStatus();
  }

 private:
  const int ordinal_;
  void* const data_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceBuffer>> AllocateOnCuda(int ordinal, size_t bytes) {
  void* data = nullptr;
  cudaError_t error = cudaSetDevice(ordinal);
  if (error == cudaSuccess) error = cudaMalloc(&data, bytes);
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // not sticky: the next call may succeed
    return absl::ResourceExhaustedError(absl::StrCat("the device has no ", bytes, " bytes"));
  }
  if (error != cudaSuccess) return absl::UnavailableError(cudaGetErrorString(error));
  return std::make_unique<CudaBuffer>(ordinal, data);
}

}  // namespace attend::bench
