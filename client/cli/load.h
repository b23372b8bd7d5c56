// The load generator: sends a workload in a closed or an open loop and gathers what came of it.
//
// Closed loop: a fixed number of requests in flight; the next starts when one ends, and latency is
// measured from its start. Open loop: requests start on a schedule of their own, and latency is
// measured from the scheduled time, also when the generator itself is late.
//
// Sender threads copy tensors and start calls; gRPC's threads only note that a call has ended. Rows
// to be checked are kept and checked after the run.

#ifndef ATTEND_CLIENT_CLI_LOAD_H_
#define ATTEND_CLIENT_CLI_LOAD_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "attend/client.h"
#include "cli/histogram.h"
#include "cli/schedule.h"
#include "cli/verify.h"
#include "cli/workload.h"

namespace attend::cli {

struct LoadOptions {
  int64_t requests = 1000;                 // 0: no limit but duration
  std::chrono::nanoseconds duration{0};    // stop sending after this; 0: no limit
  int64_t in_flight = 64;                  // closed loop; open loop: most at once
  double rate = 0;                         // requests a second; 0: closed loop
  Arrivals arrivals = Arrivals::kPoisson;  // open loop
  int senders = 1;                         // threads
  double check_share = 0.1;                // of the answers
  int64_t check_rows = 4;                  // of each of two heads
  bool keep_trace = false;
  uint64_t first_index = 0;  // of the workload's requests
};

// One ended request. Times are seconds from the start of the run.
struct TraceRow {
  uint64_t index = 0;
  RequestSpec spec;
  std::string request_id;
  absl::StatusCode code = absl::StatusCode::kOk;
  int attempts = 0;
  double scheduled_seconds = 0;  // closed loop: when it was started
  double sent_seconds = 0;       // when the library was called
  double done_seconds = 0;
  client::ServingStats stats;
};

// The server's stages, in the order in which a request meets them.
inline constexpr std::array<const char*, 6> kStageNames = {"decode", "queue",    "copy_in",
                                                           "kernel", "copy_out", "total"};

struct LoadResult {
  int64_t sent = 0;
  int64_t ok = 0;
  int64_t retries = 0;  // attempts beyond the first
  std::map<absl::StatusCode, int64_t> errors;
  std::map<absl::StatusCode, std::string> first_error;
  double seconds = 0;  // first scheduled send to last end

  // Of the requests that succeeded.
  Histogram latency;
  std::array<Histogram, kStageNames.size()> stages;
  Histogram outside;  // latency less the server's total: network, gRPC, this generator
  std::map<int64_t, int64_t> batch_requests;  // requests that shared a batch of this size
  int64_t query_tokens = 0;
  double flops = 0;
  int64_t bytes_in = 0;
  int64_t bytes_out = 0;
  std::string backend;

  std::vector<Sample> samples;
  std::vector<TraceRow> trace;
};

// What a progress bar wants to know while the run goes on.
struct Progress {
  int64_t done = 0;
  int64_t errors = 0;
  double seconds = 0;
};

// Blocks until every request that was sent has ended. `show` is called a few times a second
// and once at the end.
LoadResult RunLoad(client::Client& client, const Workload& workload, const LoadOptions& options,
                   const std::function<void(const Progress&)>& show);

}  // namespace attend::cli

#endif  // ATTEND_CLIENT_CLI_LOAD_H_
