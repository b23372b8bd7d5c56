// Checks sampled rows of sampled answers against the oracle, by the contract's tolerance.

#ifndef ATTEND_CLIENT_CLI_VERIFY_H_
#define ATTEND_CLIENT_CLI_VERIFY_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "attend/request.h"
#include "cli/workload.h"

namespace attend::cli {

// Rows kept from one answer, to be checked after the run: checking in between would take the
// processor from what is being measured.
struct Sample {
  RequestSpec spec;
  std::string request_id;
  std::vector<int64_t> heads;  // query heads
  std::vector<int64_t> rows;   // query rows
  std::vector<std::byte> o;    // [heads, rows, head_dim]
  std::vector<float> lse;      // [heads, rows]; empty unless asked for
};

// Keeps the first, the last and `rows - 2` other rows of two heads. The choice depends on `index`
// alone.
Sample TakeSample(const RequestSpec& spec, const client::AttendResult& result, uint64_t index,
                  int64_t rows);

struct Verdict {
  bool right = true;
  double worst = 0;  // largest error as a share of what is allowed; infinity for a NaN
  std::string what;  // one line when wrong
};

// The bound of o is that of the contract, with maxima over the sampled rows of a head: twice the
// error of the plain formula (products and scores in fp32, P and O rounded to the dtype) and one
// rounding step of the dtype; fp32: 1e-5 of the largest value if that is more. lse: 1e-5 (fp32) or
// 1e-4 of max(1, largest score).
Verdict Check(const Sample& sample);

}  // namespace attend::cli

#endif  // ATTEND_CLIENT_CLI_VERIFY_H_
