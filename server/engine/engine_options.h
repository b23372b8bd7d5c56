// Limits and policy of one engine. Every number is a flag of attend-server (server/ops/options).

#ifndef ATTEND_SERVER_ENGINE_ENGINE_OPTIONS_H_
#define ATTEND_SERVER_ENGINE_ENGINE_OPTIONS_H_

#include <chrono>
#include <cstdint>

#include "absl/status/status.h"

namespace attend {

struct EngineOptions {
  int workers = 0;             // 0: what the backend prefers
  int completion_threads = 2;  // they call Request::done, so that a slow reply holds no worker

  // Admission.
  int64_t max_in_flight_requests = 4096;           // a place is a few hundred bytes
  int64_t max_in_flight_bytes = int64_t{4} << 30;  // staging, all clients
  double client_share = 0.5;                       // of both, for one client; 1: no limit
  int64_t staging_slab_bytes = int64_t{64} << 20;  // unit in which staging is taken from the host
  int64_t staging_initial_bytes = int64_t{128} << 20;  // taken and touched at start

  // Batching. An idle worker never waits for company; a batch grows only from what is queued.
  int64_t max_batch_tasks = 256;
  double max_batch_flops = 2e12;  // about 3 ms of an H200
  int64_t max_batch_bytes = int64_t{512} << 20;
  std::chrono::microseconds batch_delay{0};  // optional wait for company; off

  // Order: priority class with ageing, then deadline.
  // Deadline, for ordering, of a request that names none or a later one.
  std::chrono::milliseconds default_slack{1000};
  std::chrono::milliseconds ageing{500};  // a request gains one priority class per this
};

// INVALID_ARGUMENT naming the first option that is out of range (FieldOf), or OK.
absl::Status Validate(const EngineOptions& options);

}  // namespace attend

#endif  // ATTEND_SERVER_ENGINE_ENGINE_OPTIONS_H_
