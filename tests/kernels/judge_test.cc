// Who judges the judge: the comparison must accept the oracle's own answers and refuse the answers
// of tasks that are wrong in one point.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "kernels/reference/number_formats.h"
#include "kernels/reference/reference.h"
#include "tests/testing/case_table.h"
#include "tests/testing/expectation.h"
#include "tests/testing/problem.h"
#include "tests/testing/random.h"

namespace attend::testing {
namespace {

constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

Case OneTask(TaskSpec spec, DType dtype) {
  spec.dtype = dtype;
  return {"judged", {spec}};
}

TaskSpec BaseSpec() {
  TaskSpec spec = {.seqlen_q = 60, .seqlen_k = 90, .heads_q = 4, .heads_k = 2};
  spec.mask.causal = true;
  spec.mask.window_left = 40;
  spec.bias = BiasSpec{};
  spec.alibi = true;
  spec.sinks = Sinks::kNormal;
  spec.softcap = 4;
  spec.padding_q = 3;
  spec.padding_k = 5;
  return spec;
}

TEST(Judge, AcceptsTheOracle) {
  for (const DType dtype : kDTypes) {
    Problem problem(OneTask(BaseSpec(), dtype), TestSeed());
    const AttentionTask& task = problem.tasks()[0];
    reference::Run(task);
    EXPECT_TRUE(Matches(task, Expect(task)));
    EXPECT_EQ(problem.Damage(), "");
  }
}

// The answer of a task that was misread in one point.
TEST(Judge, RefusesEveryMisreading) {
  const std::pair<const char*, std::function<void(AttentionTask&)>> misreadings[] = {
      {"scale 2 % off", [](AttentionTask& t) { t.softmax_scale *= 1.02f; }},
      {"no softcap", [](AttentionTask& t) { t.softcap = 0; }},
      {"not causal", [](AttentionTask& t) { t.mask.causal = false; }},
      {"diagonal one off",
       [](AttentionTask& t) { t.mask.causal = false, t.mask.window_right = 1; }},
      {"window one short", [](AttentionTask& t) { t.mask.window_left = 39; }},
      {"window one long", [](AttentionTask& t) { t.mask.window_left = 41; }},
      {"no window", [](AttentionTask& t) { t.mask.window_left = std::nullopt; }},
      {"no bias", [](AttentionTask& t) { t.bias.data = nullptr; }},
      {"bias of one head for all", [](AttentionTask& t) { t.bias.head_stride = 0; }},
      {"bias of one row for all", [](AttentionTask& t) { t.bias.row_stride = 0; }},
      {"no ALiBi", [](AttentionTask& t) { t.alibi_slopes.data = nullptr; }},
      {"no sinks", [](AttentionTask& t) { t.sinks.data = nullptr; }},
      {"a key dropped", [](AttentionTask& t) { --t.seqlen_k; }},
      {"padding read", [](AttentionTask& t) { ++t.seqlen_k; }},
      {"a padded row computed", [](AttentionTask& t) { ++t.seqlen_q; }},
      {"a row dropped", [](AttentionTask& t) { --t.seqlen_q; }},
      {"one kv head for all", [](AttentionTask& t) { t.k.head_stride = 0; }},
  };
  for (const DType dtype : kDTypes) {
    Problem problem(OneTask(BaseSpec(), dtype), TestSeed());
    const AttentionTask& task = problem.tasks()[0];
    const Expectation expected = Expect(task);
    for (const auto& [name, misread] : misreadings) {
      AttentionTask wrong = task;
      misread(wrong);
      problem.PoisonOutputs();
      reference::Run(wrong);
      EXPECT_FALSE(Matches(task, expected)) << name << " passed as " << Name(dtype);
    }
  }
}

TEST(Judge, RefusesSingleWrongValues) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const DType dtype : kDTypes) {
    Problem problem(OneTask(BaseSpec(), dtype), TestSeed());
    const AttentionTask& task = problem.tasks()[0];
    const Expectation expected = Expect(task);
    reference::Run(task);
    ASSERT_TRUE(Matches(task, expected));
    const auto with_o = [&](int64_t index, double value) {
      const double before = reference::LoadElement(task.o.data, dtype, index);
      reference::StoreElement(task.o.data, dtype, index, value);
      const bool accepted = static_cast<bool>(Matches(task, expected));
      reference::StoreElement(task.o.data, dtype, index, before);
      return accepted;
    };
    const double some = reference::LoadElement(task.o.data, dtype, 777);
    EXPECT_TRUE(with_o(777, some));
    EXPECT_FALSE(with_o(777, some + 0.1));
    EXPECT_FALSE(with_o(777, std::nan("")));
    EXPECT_FALSE(with_o(777, infinity));
    const int64_t padded = 60 * task.o.row_stride;
    EXPECT_FALSE(with_o(padded, 1e-3)) << "padded rows are exactly 0";
    const auto with_lse = [&](int64_t index, float value) {
      const float before = std::exchange(task.lse.data[index], value);
      const bool accepted = static_cast<bool>(Matches(task, expected));
      task.lse.data[index] = before;
      return accepted;
    };
    EXPECT_FALSE(with_lse(5, task.lse.data[5] + 0.01f));
    EXPECT_FALSE(with_lse(5, std::nanf("")));
    EXPECT_FALSE(with_lse(5, infinity));
    EXPECT_FALSE(with_lse(60, 0)) << "padded rows are exactly -infinity";
  }
}

TEST(Judge, NaNMustReachItsRowAndNoOther) {
  TaskSpec spec = {.seqlen_q = 50, .seqlen_k = 50, .heads_q = 2, .heads_k = 2};
  spec.mask.causal = true;
  spec.mask.window_left = 5;
  spec.trap = Trap::kInValue;
  Problem problem(OneTask(spec, DType::kF32), TestSeed());
  const AttentionTask& task = problem.tasks()[0];
  const Expectation expected = Expect(task);
  reference::Run(task);
  ASSERT_TRUE(Matches(task, expected));
  int64_t tainted = -1, clean = -1;
  for (int64_t i = 0; i < 50; ++i) {
    (expected.answer.tainted[static_cast<size_t>(i)] != 0 ? tainted : clean) = i;
  }
  ASSERT_GE(tainted, 0);
  ASSERT_GE(clean, 0);
  float* o = static_cast<float*>(task.o.data);
  const auto row = [&](int64_t i) { return o + i * task.o.row_stride; };
  std::vector<float> before(row(tainted), row(tainted) + task.o.columns);
  std::fill(row(tainted), row(tainted) + task.o.columns, 0.5f);
  EXPECT_FALSE(Matches(task, expected)) << "a lost NaN";
  std::copy(before.begin(), before.end(), row(tainted));
  ASSERT_TRUE(Matches(task, expected));
  row(clean)[3] = std::nanf("");
  EXPECT_FALSE(Matches(task, expected)) << "a NaN in a row that sees none";
}

TEST(Judge, SeesDamageAroundTheOutputs) {
  TaskSpec spec = BaseSpec();
  spec.layout = Layout::kRowGap;
  Problem problem(OneTask(spec, DType::kF32), TestSeed());
  problem.PoisonOutputs();
  const AttentionTask& task = problem.tasks()[0];
  float* gap = static_cast<float*>(task.o.data) + task.heads_q() * task.head_dim_v();
  const float poison = std::exchange(*gap, 0.0f);
  EXPECT_NE(problem.Damage(), "");
  *gap = poison;
  EXPECT_EQ(problem.Damage(), "");
  float* input = static_cast<float*>(task.q.data);
  const float value = std::exchange(*input, *input + 1);
  EXPECT_NE(problem.Damage(), "");
  *input = value;
  EXPECT_EQ(problem.Damage(), "");
  float* before = static_cast<float*>(task.o.data) - 1;
  const float guard = std::exchange(*before, 1.0f);
  EXPECT_NE(problem.Damage(), "");
  *before = guard;
}

// The bound stays near what the contract asks: it is no licence.
TEST(Judge, BoundsAreTight) {
  for (const DType dtype : kDTypes) {
    const TaskSpec spec = {.seqlen_q = 100, .seqlen_k = 200};
    Problem problem(OneTask(spec, dtype), TestSeed());
    const Expectation expected = Expect(problem.tasks()[0]);
    const auto rows = static_cast<std::ptrdiff_t>(expected.answer.o.size() / 2);
    for (std::ptrdiff_t h = 0; h < 2; ++h) {
      double largest = 0;
      for (std::ptrdiff_t i = h * rows; i < (h + 1) * rows; ++i) {
        largest = std::max(largest, std::fabs(expected.answer.o[static_cast<size_t>(i)]));
      }
      // 16 bits: half a step for P and for O, doubled, and one more step.
      const double limit = dtype == DType::kF32 ? 1e-5 : 4 * reference::RoundingStep(1, dtype);
      const double bound = expected.o_bound[static_cast<size_t>(h)];
      EXPECT_LE(bound, limit * largest) << Name(dtype);
      EXPECT_GT(bound, 0);
    }
    for (const double bound : expected.lse_bound) {
      EXPECT_LT(bound, dtype == DType::kF32 ? 1e-4 : 1e-3) << Name(dtype);
    }
  }
}

TEST(CaseTable, NamesAreDistinct) {
  std::vector<std::string> names;
  for (const Case& test_case : CaseTable()) {
    EXPECT_EQ(std::count(names.begin(), names.end(), test_case.name), 0) << test_case.name;
    names.push_back(test_case.name);
  }
  EXPECT_GT(names.size(), 150u);
}

}  // namespace
}  // namespace attend::testing
