#include "server/engine/engine_options.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/errors.h"

namespace attend {
namespace {

// Bounds against typing errors and overflow, far beyond any use.
constexpr int kMostThreads = 1024;
constexpr int64_t kMostRequests = int64_t{1} << 24;
constexpr int64_t kMostBytes = int64_t{1} << 50;
constexpr std::chrono::hours kLongestTime{24};

template <typename T>
absl::Status InRange(std::string_view name, T value, T least, T most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return InvalidField(name, absl::StrCat("is ", value, "; it must be ", least, " to ", most));
}

}  // namespace

absl::Status Validate(const EngineOptions& options) {
  const auto seconds = [](auto duration) {
    return std::chrono::duration<double>(duration).count();
  };
  const double longest = seconds(kLongestTime);
  for (const absl::Status& status : {
           InRange("workers", options.workers, 0, kMostThreads),
           InRange("completion_threads", options.completion_threads, 1, kMostThreads),
           InRange("max_in_flight_requests", options.max_in_flight_requests, int64_t{1},
                   kMostRequests),
           InRange("max_in_flight_bytes", options.max_in_flight_bytes, int64_t{256}, kMostBytes),
           InRange("client_share", options.client_share, 0.0, 1.0),
           InRange("staging_slab_bytes", options.staging_slab_bytes, int64_t{4096}, kMostBytes),
           InRange("staging_initial_bytes", options.staging_initial_bytes, int64_t{0},
                   options.max_in_flight_bytes),
           InRange("max_batch_tasks", options.max_batch_tasks, int64_t{1}, kMostRequests),
           InRange("max_batch_flops", options.max_batch_flops, 1.0, 1e18),
           InRange("max_batch_bytes", options.max_batch_bytes, int64_t{1}, kMostBytes),
           InRange("batch_delay", seconds(options.batch_delay), 0.0, longest),
           InRange("default_slack", seconds(options.default_slack), 0.0, longest),
           InRange("ageing", seconds(options.ageing), 1e-3, longest),
       }) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace attend
