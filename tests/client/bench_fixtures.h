// What tests of the load generator share.

#ifndef ATTEND_TESTS_CLIENT_BENCH_FIXTURES_H_
#define ATTEND_TESTS_CLIENT_BENCH_FIXTURES_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "cli/workload.h"
#include "tests/testing/random.h"

namespace attend::cli {

// Another one for each test, all from the seed of the run.
inline uint64_t FreshSeed() {
  return testing::MixSeed(testing::TestSeed(),
                          ::testing::UnitTest::GetInstance()->current_test_info()->name());
}

inline Choice ParseChoice(const char* text) {
  Choice choice;
  EXPECT_TRUE(ParseValue(text, &choice)) << text;
  return choice;
}

// Small requests of every kind.
inline WorkloadOptions SmallWorkload() {
  WorkloadOptions options;
  options.rows = ParseChoice("1:40");
  options.kv_rows = ParseChoice("1:50");
  options.heads = ParseChoice("2:8");
  options.group = ParseChoice("1,2");
  options.head_dim = ParseChoice("7,64");
  options.dtypes = {"fp32", "fp16", "bf16"};
  options.lse = true;
  return options;
}

}  // namespace attend::cli

#endif  // ATTEND_TESTS_CLIENT_BENCH_FIXTURES_H_
