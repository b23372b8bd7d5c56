// The parts that the case table is put together from, and what they share.

#ifndef ATTEND_TESTS_TESTING_CASE_ROWS_H_
#define ATTEND_TESTS_TESTING_CASE_ROWS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/testing/task_spec.h"

namespace attend::testing {

using Cases = std::vector<Case>;

inline void Add(Cases& cases, std::string name, TaskSpec spec) {
  cases.push_back({std::move(name), {spec}});
}

inline MaskSpec Window(std::optional<int64_t> left, std::optional<int64_t> right,
                       bool causal = false) {
  MaskSpec mask;
  mask.causal = causal;
  mask.window_left = left;
  mask.window_right = right;
  return mask;
}

inline MaskSpec Causal() { return Window(std::nullopt, std::nullopt, true); }

// Which keys meet which rows: lengths, heads, masks, padding, decoding, batches.
void AddShapeCases(Cases& cases);

// What becomes of a score: scales, caps, sizes of logits, biases, ALiBi, sinks.
void AddScoreCases(Cases& cases);

// NaN and infinity, seen and hidden.
void AddTrapCases(Cases& cases);

}  // namespace attend::testing

#endif  // ATTEND_TESTS_TESTING_CASE_ROWS_H_
