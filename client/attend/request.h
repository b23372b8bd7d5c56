// What a caller asks for and what comes back.
//
// Shapes: see tensor.h. Units: each field says its own; times are std::chrono or seconds.
// Ownership: the bytes behind every TensorRef and destination must stay valid, and the inputs
// unchanged, until the call has ended; everything else is copied.
// Threads: plain values.

#ifndef ATTEND_CLIENT_REQUEST_H_
#define ATTEND_CLIENT_REQUEST_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "attend/tensor.h"

namespace attend::client {

enum class Priority : uint8_t { kLow, kNormal, kHigh };

struct AttendInputs {
  TensorRef q;  // one data type for all three
  TensorRef k;
  TensorRef v;
};

// Defaults ask for plain dense attention. An option that the server lacks is refused with
// UNIMPLEMENTED, never ignored.
struct AttendOptions {
  std::optional<float> scale = {};           // multiplies q.k; default 1/sqrt(D); any finite value
  bool causal = false;                       // query i sees key j only if j <= i + Sk - Sq
  std::optional<int64_t> window_left = {};   // keys kept before a query's position; absent: all
  std::optional<int64_t> window_right = {};  // keys kept after it; absent: all
  std::optional<float> softcap = {};         // softcap * tanh(score / softcap); absent or 0: off
  bool return_lse = false;                   // also the natural log-sum-exp of each row

  std::optional<TensorRef> bias = {};  // [B or 1, Hq or 1, Sq or 1, Sk]; B absent for one sequence
  std::optional<TensorRef> alibi_slopes = {};  // fp32 [Hq]
  std::optional<TensorRef> sinks = {};         // fp32 [Hq], natural-log units

  // Padded batch: real rows of each sequence.
  std::vector<int64_t> q_lens = {};
  std::vector<int64_t> kv_lens = {};
  // Ragged batch: first 0, non-decreasing, last = total rows.
  std::vector<int64_t> cu_seqlens_q = {};
  std::vector<int64_t> cu_seqlens_k = {};

  Priority priority = Priority::kNormal;
  // At most 128 printable ASCII characters, for logs and errors; made up when empty.
  std::string request_id = {};
  // The whole call, retries included. Absent: ClientOptions::default_timeout.
  std::optional<std::chrono::nanoseconds> timeout = {};

  // Where to put the outputs; empty: new memory. Exact sizes in bytes, or the call fails. Their
  // content is undefined when the call fails.
  std::span<std::byte> o_destination = {};
  std::span<std::byte> lse_destination = {};
};

// How the server handled the request. Seconds.
struct ServingStats {
  double decode_seconds = 0;    // parsing, checks, copy into staging
  double queue_seconds = 0;     // waiting for a worker
  double copy_in_seconds = 0;   // of the batch, host to device
  double kernel_seconds = 0;    // of the batch
  double copy_out_seconds = 0;  // of the batch, device to host
  double total_seconds = 0;     // from the parsed message to the reply
  int64_t batch_requests = 0;   // requests that shared the batch, this one counted
  int64_t batch_tasks = 0;      // sequences of the batch
  int64_t batch_tokens = 0;     // query rows of the batch
  std::string backend;
  int device = 0;
};

struct AttendResult {
  Tensor o;    // the shape of q with Dv for D, in the inputs' data type
  Tensor lse;  // fp32 [Hq, Sq], [B, Hq, Sq] or [Hq, total_q]; empty unless asked for
  ServingStats stats;
  std::string request_id;
  int attempts = 1;  // 1: no retry was needed
};

}  // namespace attend::client

#endif  // ATTEND_CLIENT_REQUEST_H_
