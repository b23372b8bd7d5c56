// The case table: every option of the contract, each row by name. Backends are judged on all of it.

#ifndef ATTEND_TESTS_TESTING_CASE_TABLE_H_
#define ATTEND_TESTS_TESTING_CASE_TABLE_H_

#include <cstdint>
#include <vector>

#include "tests/testing/task_spec.h"

namespace attend::testing {

// Rows are independent of the dtype, which whoever runs them sets.
const std::vector<Case>& CaseTable();

// `n`, or a quarter of it under a sanitizer, where everything takes longer.
int64_t Scaled(int64_t n);

}  // namespace attend::testing

#endif  // ATTEND_TESTS_TESTING_CASE_TABLE_H_
