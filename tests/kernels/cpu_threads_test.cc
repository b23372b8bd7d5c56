// The CPU backend cuts a batch by how many threads there are; no bit of an answer may tell.

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/attention.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/testing/problem.h"
#include "tests/testing/random.h"
#include "tests/testing/task_spec.h"

namespace attend::testing {
namespace {

class CpuThreads : public ::testing::TestWithParam<DType> {
 protected:
  std::vector<uint8_t> Outputs(int threads, Problem& problem) {
    BackendOptions options;
    options.threads = threads;
    absl::StatusOr<std::unique_ptr<Backend>> backend = MakeCpuBackend(options);
    EXPECT_TRUE(backend.ok()) << backend.status();
    if (!backend.ok()) return {};
    absl::StatusOr<std::unique_ptr<Executor>> executor = (*backend)->MakeExecutor();
    EXPECT_TRUE(executor.ok()) << executor.status();
    if (!executor.ok()) return {};
    problem.PoisonOutputs();
    BatchReport report;
    const absl::Status status = (*executor)->Run({problem.tasks()}, &report);
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_EQ(problem.Damage(), "");
    return problem.OutputBytes();
  }

  void ExpectSameBits(const Case& test_case, uint64_t seed) {
    Case typed = test_case;
    for (TaskSpec& spec : typed.tasks) spec.dtype = GetParam();
    Problem problem(typed, seed);
    const std::vector<uint8_t> alone = Outputs(1, problem);
    for (const int threads : {2, 3, 7}) {
      EXPECT_EQ(alone, Outputs(threads, problem))
          << threads << " threads, " << Describe(typed.tasks[0]);
    }
  }
};

// Enough items for one thread to merge tiles and too few for seven.
TEST_P(CpuThreads, ManyRowsGiveTheSameBits) {
  TaskSpec spec;
  spec.seqlen_q = 1003;
  spec.seqlen_k = 1100;
  spec.heads_q = spec.heads_k = 3;
  spec.head_dim = 48;
  spec.mask.causal = true;
  ExpectSameBits({"rows", {spec}}, MixSeed(TestSeed(), "rows"));
}

// Keys cut into chunks, query heads packed into rows.
TEST_P(CpuThreads, DecodeStepsGiveTheSameBits) {
  TaskSpec spec;
  spec.seqlen_q = 1;
  spec.seqlen_k = 5000;
  spec.heads_q = 32;
  spec.heads_k = 2;
  ExpectSameBits({"decode", {spec}}, MixSeed(TestSeed(), "decode"));
}

TEST_P(CpuThreads, MixedBatchesGiveTheSameBits) {
  const uint64_t seed = MixSeed(TestSeed(), "mixed");
  Random random(seed);
  for (int trial = 0; trial < 5; ++trial) {
    Case test_case{"mixed", {}, false};
    for (int i = 0; i < 12; ++i) test_case.tasks.push_back(RandomTask(random));
    TaskSpec large;
    large.seqlen_q = random.Between(300, 900);
    large.seqlen_k = random.Between(300, 900);
    large.heads_q = large.heads_k = 4;
    test_case.tasks.push_back(large);
    ExpectSameBits(test_case, seed + static_cast<uint64_t>(trial));
  }
}

INSTANTIATE_TEST_SUITE_P(AllTypes, CpuThreads,
                         ::testing::Values(DType::kF32, DType::kF16, DType::kBF16),
                         [](const ::testing::TestParamInfo<DType>& type) {
                           return std::string(Name(type.param));
                         });

}  // namespace
}  // namespace attend::testing
