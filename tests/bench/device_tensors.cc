#include "tests/bench/device_tensors.h"

#include <cstring>
#include <utility>

#include "kernels/host_staging.h"

namespace attend::bench {
namespace {

class HostBuffer final : public DeviceBuffer {
 public:
  explicit HostBuffer(std::unique_ptr<Staging> memory) : memory_(std::move(memory)) {}
  void* data() const override { return memory_->data(); }
  MemoryKind memory() const override { return MemoryKind::kHost; }
  absl::Status CopyIn(const void* host, size_t bytes) override {
    std::memcpy(memory_->data(), host, bytes);
    return absl::OkStatus();
  }

 private:
  const std::unique_ptr<Staging> memory_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceBuffer>> AllocateFor(std::string_view backend,
                                                          [[maybe_unused]] int ordinal,
                                                          size_t bytes) {
#if defined(ATTEND_WITH_CUDA)
  if (backend.find("cuda") != backend.npos) return AllocateOnCuda(ordinal, bytes);
#else
  (void)backend;
#endif
  absl::StatusOr<std::unique_ptr<Staging>> memory = MakeHostStaging(bytes);
  if (!memory.ok()) return memory.status();
  return std::make_unique<HostBuffer>(*std::move(memory));
}

}  // namespace attend::bench
