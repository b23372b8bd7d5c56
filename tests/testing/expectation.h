// What a task must answer, and whether an answer is near enough: the contract's tolerance.
//
// The bound follows from the error that the plain unfused formula makes (products and scores in
// fp32, P and O rounded to the dtype), measured against the double-precision oracle for each head.
// One measured error can be small by luck, where heads are small or a row hangs on a near tie of
// large scores; so it counts as no less than the error that rounding is known to make.

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
  double lse_bound = 0;           // times max(1, largest score of the row)
  std::vector<double> lse_floor;  // for each head: never less than twice the plain formula's error
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
  std::vector<double> o_noise;    // largest error of the row's outputs that rounding explains
  std::vector<double> lse_noise;  // the same of its log-sum-exp
};
PlainAnswer PlainAttention(const AttentionTask& task, const reference::Answer& answer);

}  // namespace attend::testing

#endif  // ATTEND_TESTS_TESTING_EXPECTATION_H_
