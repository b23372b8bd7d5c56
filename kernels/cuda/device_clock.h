// One time base for the events of a device, so that the batches of different executors can be
// compared to the microsecond.
//
// CUDA tells only the time between two events, as a float of milliseconds with half a microsecond
// of resolution: past 8 seconds the float is coarser than the clock. So events are measured against
// a shared anchor event that is renewed every few seconds, and the anchors' own times are summed up
// in double.

#ifndef ATTEND_KERNELS_CUDA_DEVICE_CLOCK_H_
#define ATTEND_KERNELS_CUDA_DEVICE_CLOCK_H_

#include <cuda_runtime_api.h>

#include <chrono>
#include <memory>
#include <mutex>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace attend::cuda {

// Where the next anchor stands: `previous` + `elapsed` as long as the float still resolves it; past
// that (the device was idle) the host's clock is the better witness. Seconds.
double NextAnchorSeconds(double previous, double elapsed_by_events, double elapsed_by_host);

// Thread-safe; the device must be current in the calling thread.
class DeviceClock {
 public:
  // An event whose time is known. Used by a batch from begin to end, even if a newer one exists.
  struct Anchor {
    ~Anchor();
    cudaEvent_t event = nullptr;
    double seconds = 0;  // since the clock was made
    std::chrono::steady_clock::time_point host;
  };

  static absl::StatusOr<std::unique_ptr<DeviceClock>> Make();
  ~DeviceClock();

  // The anchor for a batch that is about to start; renews it when it has aged.
  absl::StatusOr<std::shared_ptr<const Anchor>> Current();

  // When the completed `event` happened, in seconds since the clock was made.
  static absl::StatusOr<double> Seconds(const Anchor& anchor, cudaEvent_t event);

 private:
  DeviceClock() = default;
  absl::StatusOr<std::shared_ptr<Anchor>> Record();

  cudaStream_t stream_ = nullptr;  // nothing else runs here, so an anchor never waits for work
  std::mutex mutex_;
  std::shared_ptr<const Anchor> anchor_;  // guarded by mutex_
};

}  // namespace attend::cuda

#endif  // ATTEND_KERNELS_CUDA_DEVICE_CLOCK_H_
