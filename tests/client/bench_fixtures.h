// What tests of the load generator share.

#ifndef ATTEND_TESTS_CLIENT_BENCH_FIXTURES_H_
#define ATTEND_TESTS_CLIENT_BENCH_FIXTURES_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>

#include "cli/workload.h"

namespace attend::cli {

// Kept with the test's result; name it in messages.
inline uint64_t FreshSeed() {
  const uint64_t seed = (uint64_t{std::random_device{}()} << 32) | std::random_device{}();
  ::testing::Test::RecordProperty("seed", std::to_string(seed));
  return seed;
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
