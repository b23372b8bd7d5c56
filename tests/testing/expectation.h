// What a task must answer, and whether an answer is near enough: the contract's tolerance.
//
// The bound follows from the error that the plain unfused formula makes (products and scores in
// fp32, P and O rounded to the dtype), measured against the double-precision oracle for each head.

#ifndef ATTEND_TESTS_TESTING_EXPECTATION_H_
#define ATTEND_TESTS_TESTING_EXPECTATION_H_

#include <gtest/gtest.h>

#include <vector>

#include "absl/types/span.h"
#include "kernels/attention.h"
#include "kernels/reference/reference.h"

namespace attend::testing {

struct Expectation {
  reference::Answer answer;
  std::vector<double> o_bound;  // for each head of `answer`
  double lse_bound = 0;         // times max(1, largest score of the row)
};

// Of every row and head, or of chosen ones.
Expectation Expect(const AttentionTask& task);
Expectation ExpectRows(const AttentionTask& task, absl::Span<const int64_t> heads,
                       absl::Span<const int64_t> rows);

// Judges what stands in task.o and task.lse. Names the worst element when it fails.
::testing::AssertionResult Matches(const AttentionTask& task, const Expectation& expected);

// The plain formula in fp32: o of the answer's heads and rows, rounded; [heads, rows, head_dim_v].
std::vector<double> PlainAttention(const AttentionTask& task, const reference::Answer& answer);

}  // namespace attend::testing

#endif  // ATTEND_TESTS_TESTING_EXPECTATION_H_
