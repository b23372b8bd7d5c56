// What a benchmark sends: shapes drawn by chance from choices, data cut from buffers made before.
//
// Request number i of a seed is always the same, in whatever order requests are sent, so a run can
// be repeated and an answer checked later. Immutable after Make; thread-safe.

#ifndef ATTEND_CLIENT_CLI_WORKLOAD_H_
#define ATTEND_CLIENT_CLI_WORKLOAD_H_

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "attend/request.h"
#include "kernels/attention.h"

namespace attend::cli {

// "64:2048": any integer between, each factor of two as likely as the next; "64,128": one of these.
class Choice {
 public:
  Choice() = default;
  static Choice Of(std::vector<int64_t> values);

  int64_t Draw(std::mt19937_64& generator) const;
  int64_t min() const;
  int64_t max() const;

  friend bool ParseValue(std::string_view text, Choice* choice);
  friend std::string FormatValue(const Choice& choice);

 private:
  std::vector<int64_t> values_ = {1};
  bool is_range_ = false;  // values_ holds its two ends
};
bool ParseValue(std::string_view text, Choice* choice);
std::string FormatValue(const Choice& choice);

struct WorkloadOptions {
  Choice rows = Choice::Of({64, 2048});     // query rows
  std::optional<Choice> kv_rows;            // keys; as many as rows without it
  Choice heads = Choice::Of({4, 32});       // kv heads times group
  Choice group = Choice::Of({1});           // query heads of one kv head
  Choice head_dim = Choice::Of({64, 128});  // D and Dv
  std::vector<std::string> dtypes = {"bf16"};
  double causal_share = 0.5;
  bool lse = false;
};

struct RequestSpec {
  DType dtype = DType::kBF16;
  int64_t rows = 0;
  int64_t kv_rows = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  bool causal = false;
  bool lse = false;
  const void* q = nullptr;  // in the workload's buffers
  const void* k = nullptr;
  const void* v = nullptr;

  int64_t q_bytes() const { return rows * heads * head_dim * ByteSize(dtype); }
  int64_t kv_bytes() const { return kv_rows * kv_heads * head_dim * ByteSize(dtype); }
  int64_t bytes_in() const { return q_bytes() + 2 * kv_bytes(); }
  int64_t bytes_out() const { return q_bytes() + (lse ? rows * heads * 4 : 0); }
};

class Workload {
 public:
  // INVALID_ARGUMENT when the choices cannot be met.
  static absl::StatusOr<std::unique_ptr<Workload>> Make(const WorkloadOptions& options,
                                                        uint64_t seed);

  RequestSpec Request(uint64_t index) const;
  uint64_t seed() const { return seed_; }
  // Of the largest request that can be drawn.
  int64_t max_bytes_in() const { return max_bytes_in_; }

 private:
  Workload(const WorkloadOptions& options, uint64_t seed) : options_(options), seed_(seed) {}

  const WorkloadOptions options_;
  const uint64_t seed_;
  std::vector<DType> dtypes_;
  std::map<DType, std::vector<std::byte>> data_;
  int64_t max_bytes_in_ = 0;
};

// The request as the client library and as the oracle take it. Views into the workload's buffers.
client::AttendInputs InputsOf(const RequestSpec& spec);
client::AttendOptions OptionsOf(const RequestSpec& spec);
AttentionTask TaskOf(const RequestSpec& spec);

}  // namespace attend::cli

#endif  // ATTEND_CLIENT_CLI_WORKLOAD_H_
