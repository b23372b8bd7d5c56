// The oracle: attention in double precision by plain loops, written from the contract alone.
//
// It shares no code with the kernels or with VisibleKeys(), so that no mistake is made twice. It
// computes whole tasks (as the backend "reference") or a few rows of a few heads (to check sampled
// answers of a large one), and reports the row maxima that tolerances are made of.
//
// All tensors must be in host memory. Functions are pure and thread-safe.

#ifndef ATTEND_KERNELS_REFERENCE_REFERENCE_H_
#define ATTEND_KERNELS_REFERENCE_REFERENCE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/attention.h"

namespace attend::reference {

// Answers of chosen query rows and heads, not rounded to the task's dtype.
struct Answer {
  std::vector<int64_t> heads;     // which query heads
  std::vector<int64_t> rows;      // which query rows
  std::vector<double> o;          // [heads, rows, head_dim_v]
  std::vector<double> lse;        // [heads, rows]
  std::vector<double> max_score;  // [heads, rows]: largest visible score, -infinity without one
  // [heads, rows]: 1 where a NaN or infinity in the visible inputs, or a score past fp32's range,
  // may reach the row, which then need not match.
  std::vector<uint8_t> tainted;
};

// REQUIRES: Validate(task) is OK; 0 <= row < padded_q, 0 <= head < heads_q. Reads no output.
Answer ComputeRows(const AttentionTask& task, absl::Span<const int64_t> heads,
                   absl::Span<const int64_t> rows);

// Every head and row, those of the padding included.
Answer ComputeAll(const AttentionTask& task);

// Computes `task` and writes its o, rounded to its dtype, and its lse when wanted.
void Run(const AttentionTask& task);

// Whether the mask lets query `row` see key `key`; the bias is not looked at.
bool Sees(const MaskSpec& mask, int64_t row, int64_t key, int64_t seqlen_q, int64_t seqlen_k);

}  // namespace attend::reference

#endif  // ATTEND_KERNELS_REFERENCE_REFERENCE_H_
