// Every backend of the registry that has a device here, on the whole case table and on random
// tasks, judged by the oracle within the contract's tolerance.
//
//   conformance_test --gtest_filter='*/cpu_*'           one backend
//   conformance_test --gtest_filter='*_bf16_window_*'   one dtype and some rows
//   ATTEND_TEST_SEED=123 conformance_test               the inputs of an earlier run

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/backend.h"
#include "tests/testing/backend_runner.h"
#include "tests/testing/case_table.h"
#include "tests/testing/expectation.h"
#include "tests/testing/problem.h"
#include "tests/testing/random.h"

namespace attend::testing {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

// A case with its tensors and what they must give. The oracle is slow, so the last one is kept:
// backends are the fastest-changing parameter.
struct Judged {
  Case test_case;
  std::unique_ptr<Problem> problem;
  std::vector<Expectation> expected;
};

Judged& JudgedCase(Case test_case, DType dtype) {
  static auto& last = *new Judged;
  static auto& last_dtype = *new std::optional<DType>;
  if (last.problem == nullptr || last.test_case.name != test_case.name || last_dtype != dtype) {
    for (TaskSpec& spec : test_case.tasks) spec.dtype = dtype;
    last_dtype = dtype;
    last.test_case = std::move(test_case);
    last.problem = std::make_unique<Problem>(last.test_case, TestSeed());
    last.expected.clear();
    for (const AttentionTask& task : last.problem->tasks()) last.expected.push_back(Expect(task));
  }
  return last;
}

void RunAndJudge(BackendRunner& runner, Judged& judged) {
  const absl::Span<const AttentionTask> tasks = judged.problem->tasks();
  for (const AttentionTask& task : tasks) ASSERT_TRUE(Validate(task).ok()) << Validate(task);
  if (const absl::Status status = runner.Supports(tasks); !status.ok()) {
    ASSERT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    GTEST_SKIP() << status;
  }
  judged.problem->PoisonOutputs();
  ASSERT_EQ(runner.Run(tasks), absl::OkStatus());
  EXPECT_EQ(judged.problem->Damage(), "");
  for (size_t i = 0; i < tasks.size(); ++i) {
    EXPECT_TRUE(Matches(tasks[i], judged.expected[i]))
        << "task " << i << ": " << Describe(judged.test_case.tasks[i])
        << "\nATTEND_TEST_SEED=" << TestSeed();
  }
}

bool HasSubnormals(const Case& test_case) {
  for (const TaskSpec& spec : test_case.tasks) {
    if (spec.values == Values::kSubnormal) return true;
  }
  return false;
}

// Parameters: index of the case, dtype, backend.
using Parameters = std::tuple<size_t, DType, std::string>;

// Finds the backend; one that cannot be made here (a library is missing) is skipped aloud.
class OnBackend : public ::testing::TestWithParam<Parameters> {
 protected:
  void SetUp() override {
    const absl::StatusOr<BackendRunner*> runner = BackendRunner::Of(std::get<2>(GetParam()));
    if (!runner.ok()) {
      ASSERT_EQ(runner.status().code(), absl::StatusCode::kUnavailable) << runner.status();
      GTEST_SKIP() << runner.status();
    }
    runner_ = *runner;
  }

  BackendRunner* runner_ = nullptr;
};

class Conformance : public OnBackend {};

TEST_P(Conformance, MatchesTheOracle) {
  const auto& [index, dtype, name] = GetParam();
  const Case& test_case = CaseTable()[index];
  if (HasSubnormals(test_case) && !runner_->backend().Features().Has(Feature::kSubnormalInputs)) {
    GTEST_SKIP() << name << " flushes subnormal inputs, and says so";
  }
  RunAndJudge(*runner_, JudgedCase(test_case, dtype));
}

std::vector<size_t> AllCases() {
  std::vector<size_t> indices(CaseTable().size());
  for (size_t i = 0; i < indices.size(); ++i) indices[i] = i;
  return indices;
}

std::string CaseName(const ::testing::TestParamInfo<Parameters>& row) {
  const auto& [index, dtype, backend] = row.param;
  return absl::StrCat(TestName(backend), "_", std::string(Name(dtype)), "_",
                      CaseTable()[index].name);
}

INSTANTIATE_TEST_SUITE_P(Table, Conformance,
                         ::testing::Combine(::testing::ValuesIn(AllCases()),
                                            ::testing::ValuesIn(kDTypes),
                                            ::testing::ValuesIn(JudgedBackends())),
                         CaseName);

// Random tasks, several to a batch, new ones at every run.
class RandomConformance : public OnBackend {};

constexpr size_t kRandomBatches = 25;

TEST_P(RandomConformance, MatchesTheOracle) {
  const auto& [index, dtype, name] = GetParam();
  Case test_case;
  test_case.name = absl::StrCat("random_", index);
  Random random(MixSeed(TestSeed(), test_case.name));
  const int64_t count = random.Between(1, 4);
  for (int64_t i = 0; i < count; ++i) test_case.tasks.push_back(RandomTask(random));
  RunAndJudge(*runner_, JudgedCase(std::move(test_case), dtype));
}

std::string RandomName(const ::testing::TestParamInfo<Parameters>& row) {
  const auto& [index, dtype, backend] = row.param;
  return absl::StrCat(TestName(backend), "_", std::string(Name(dtype)), "_", index);
}

INSTANTIATE_TEST_SUITE_P(Random, RandomConformance,
                         ::testing::Combine(::testing::Range(size_t{0}, kRandomBatches),
                                            ::testing::ValuesIn(kDTypes),
                                            ::testing::ValuesIn(JudgedBackends())),
                         RandomName);

// Says aloud which backends of this build could not be judged on this host.
class ConformanceDevices : public ::testing::TestWithParam<std::string> {};

TEST_P(ConformanceDevices, Answer) {
  for (const BackendEntry& entry : BackendRegistry()) {
    if (entry.name != GetParam()) continue;
    if (entry.device_count() == 0) GTEST_SKIP() << entry.name << " has no device on this host";
    const absl::StatusOr<BackendRunner*> runner = BackendRunner::Of(entry.name);
    if (absl::IsUnavailable(runner.status())) GTEST_SKIP() << runner.status();
    EXPECT_EQ(runner.status(), absl::OkStatus());
  }
}

std::vector<std::string> AllBackends() {
  std::vector<std::string> names;
  for (const BackendEntry& entry : BackendRegistry()) names.emplace_back(entry.name);
  return names;
}

std::string BackendName(const ::testing::TestParamInfo<std::string>& row) {
  return TestName(row.param);
}

INSTANTIATE_TEST_SUITE_P(Registry, ConformanceDevices, ::testing::ValuesIn(AllBackends()),
                         BackendName);

// A build with no judged backend has no rows: that is no error of the suite.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Conformance);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RandomConformance);

}  // namespace
}  // namespace attend::testing
