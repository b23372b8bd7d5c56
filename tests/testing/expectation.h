// What a task must answer, and whether an answer is near enough: the contract's tolerance.
//
// The contract's bound is twice the error that the plain unfused formula makes (products and scores
// in fp32, P and O rounded to the dtype), measured against the double-precision oracle, the largest
// of each head. One measured error can be small by luck: where a head has few elements, where the
// outputs cancel, where a row hangs on a near tie of large scores. The judge is therefore wider
// than the contract's table in two places, and only by what rounding.h derives from the inputs:
//
//   o    the plain error counts as no less than three standard deviations of the rounding errors
//   lse  the bound is no less than twice three standard deviations of the row's rounding errors,
//        that of the result itself included: the largest score may cancel to nearly nothing, and a
//        sink may be far larger than all scores

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
  std::vector<double> o_bound;    // for each head of `answer`
  std::vector<double> lse_bound;  // for each head and row
};

// Of every row and head, or of chosen ones.
Expectation Expect(const AttentionTask& task);
Expectation ExpectRows(const AttentionTask& task, absl::Span<const int64_t> heads,
                       absl::Span<const int64_t> rows);

// Judges what stands in task.o and task.lse. Names the worst element when it fails.
::testing::AssertionResult Matches(const AttentionTask& task, const Expectation& expected);

// The plain formula in fp32, for the heads and rows of `answer`: [heads, rows(, head_dim_v)].
struct PlainAnswer {
  std::vector<double> o;  // rounded to the dtype
  std::vector<double> lse;
  std::vector<double> o_noise;    // three standard deviations of the row's worst output
  std::vector<double> lse_noise;  // the same of its log-sum-exp
};
PlainAnswer PlainAttention(const AttentionTask& task, const reference::Answer& answer);

}  // namespace attend::testing

#endif  // ATTEND_TESTS_TESTING_EXPECTATION_H_
