#include "kernels/cuda/device_clock.h"

#include <utility>

#include "kernels/cuda/cuda_status.h"

namespace attend::cuda {
namespace {

using std::chrono::steady_clock;

// 2^13 ms is the last point at which a float of milliseconds resolves half a microsecond; a batch
// may add a few seconds of its own to that before anyone looks.
constexpr double kRenewAfterSeconds = 4.0;
constexpr double kTrustEventsSeconds = 16.0;

double ToSeconds(steady_clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

double NextAnchorSeconds(double previous, double elapsed_by_events, double elapsed_by_host) {
  return previous +
         (elapsed_by_events <= kTrustEventsSeconds ? elapsed_by_events : elapsed_by_host);
}

DeviceClock::Anchor::~Anchor() {
  if (event != nullptr) cudaEventDestroy(event);
}

DeviceClock::~DeviceClock() {
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

absl::StatusOr<std::unique_ptr<DeviceClock>> DeviceClock::Make() {
  std::unique_ptr<DeviceClock> clock(new DeviceClock);
  if (const cudaError_t error = cudaStreamCreateWithFlags(&clock->stream_, cudaStreamNonBlocking);
      error != cudaSuccess) {
    return ToStatus(error, "cudaStreamCreate");
  }
  absl::StatusOr<std::shared_ptr<Anchor>> anchor = clock->Record();
  if (!anchor.ok()) return anchor.status();
  clock->anchor_ = *std::move(anchor);
  return clock;
}

absl::StatusOr<std::shared_ptr<DeviceClock::Anchor>> DeviceClock::Record() {
  auto anchor = std::make_shared<Anchor>();
  cudaError_t error = cudaEventCreate(&anchor->event);
  if (error == cudaSuccess) error = cudaEventRecord(anchor->event, stream_);
  if (error == cudaSuccess) error = cudaEventSynchronize(anchor->event);
  if (error != cudaSuccess) return ToStatus(error, "time base");
  anchor->host = steady_clock::now();
  return anchor;
}

absl::StatusOr<std::shared_ptr<const DeviceClock::Anchor>> DeviceClock::Current() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ToSeconds(steady_clock::now() - anchor_->host) < kRenewAfterSeconds) return anchor_;
  absl::StatusOr<std::shared_ptr<Anchor>> next = Record();
  if (!next.ok()) return next.status();
  float milliseconds = 0;
  if (const cudaError_t error = cudaEventElapsedTime(&milliseconds, anchor_->event, (*next)->event);
      error != cudaSuccess) {
    return ToStatus(error, "cudaEventElapsedTime");
  }
  (*next)->seconds = NextAnchorSeconds(anchor_->seconds, static_cast<double>(milliseconds) * 1e-3,
                                       ToSeconds((*next)->host - anchor_->host));
  anchor_ = *std::move(next);
  return anchor_;
}

absl::StatusOr<double> DeviceClock::Seconds(const Anchor& anchor, cudaEvent_t event) {
  float milliseconds = 0;
  if (const cudaError_t error = cudaEventElapsedTime(&milliseconds, anchor.event, event);
      error != cudaSuccess) {
    return ToStatus(error, "cudaEventElapsedTime");
  }
  return anchor.seconds + static_cast<double>(milliseconds) * 1e-3;
}

}  // namespace attend::cuda
