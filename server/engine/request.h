// One client's request inside the engine.

#ifndef ATTEND_SERVER_ENGINE_REQUEST_H_
#define ATTEND_SERVER_ENGINE_REQUEST_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/attention.h"

namespace attend {

using Clock = std::chrono::steady_clock;

enum class Priority : uint8_t { kLow, kNormal, kHigh };
inline constexpr int kPriorityCount = 3;

// What the engine learned about one request, for the reply and for metrics. Seconds; a request
// whose tasks ran in several batches gets sums for stages and the largest batch for sizes.
struct RequestReport {
  double queue_seconds = 0;  // until the first task was launched, or the request ended unlaunched
  double copy_in_seconds = 0;
  double kernel_seconds = 0;
  double copy_out_seconds = 0;
  int64_t batch_requests = 0;  // requests that shared the batch, this one counted
  int64_t batch_tasks = 0;
  int64_t batch_tokens = 0;  // query rows of the batch
  int device = 0;
};

// Bytes and a place in the engine, held from Engine::Admit until the reply has been sent.
// Move-only RAII: destruction gives back the staging bytes and the in-flight place.
class Admission;

struct Request {
  std::string id;      // for logs and errors
  std::string client;  // whose share of the limits it counts against
  std::vector<AttentionTask> tasks;
  Priority priority = Priority::kNormal;
  std::optional<Clock::time_point> deadline;

  // Called exactly once, from a completion thread, never under an engine lock. After it has been
  // called the engine and the device no longer touch the memory that the tasks point to.
  std::function<void(const absl::Status&, const RequestReport&)> done;
};

}  // namespace attend

#endif  // ATTEND_SERVER_ENGINE_REQUEST_H_
