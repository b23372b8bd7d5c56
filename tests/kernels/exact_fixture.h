// What tests of exact answers share: plain tensors, and a fixture that finds its backend.

#ifndef ATTEND_TESTS_KERNELS_EXACT_FIXTURE_H_
#define ATTEND_TESTS_KERNELS_EXACT_FIXTURE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/attention.h"
#include "kernels/reference/number_formats.h"
#include "tests/testing/backend_runner.h"

namespace attend::testing {

// Contiguous tensors of one sequence in ordinary memory. Everything is 0 but the outputs, NaN.
struct Tensors {
  Tensors(DType dtype, int64_t sq, int64_t sk, int64_t hq, int64_t hk, int64_t d, int64_t dv) {
    const auto tensor = [&](int64_t rows, int64_t heads, int64_t columns) {
      auto& memory = memories.emplace_back(static_cast<size_t>(rows * heads * columns), 0.0f);
      return TensorView::Contiguous(memory.data(), dtype, MemoryKind::kHost, rows, heads, columns);
    };
    memories.reserve(4);
    task.q = tensor(sq, hq, d);
    task.k = tensor(sk, hk, d);
    task.v = tensor(sk, hk, dv);
    task.o = tensor(sq, hq, dv);
    task.seqlen_q = sq;
    task.seqlen_k = sk;
    for (int64_t i = 0; i < sq * hq * dv; ++i)
      reference::StoreElement(task.o.data, dtype, i, std::numeric_limits<float>::quiet_NaN());
  }

  static int64_t Index(const TensorView& view, int64_t row, int64_t head, int64_t column) {
    return row * view.row_stride + head * view.head_stride + column;
  }
  static void Set(const TensorView& view, int64_t row, int64_t head, int64_t column, double value) {
    reference::StoreElement(view.data, view.dtype, Index(view, row, head, column), value);
  }
  double O(int64_t row, int64_t head, int64_t column) const {
    return reference::LoadElement(task.o.data, task.o.dtype, Index(task.o, row, head, column));
  }

  AttentionTask task;
  std::vector<std::vector<float>> memories;  // floats: room enough for every dtype
};

using ExactParameters = std::tuple<DType, std::string>;

class OnExactBackend : public ::testing::TestWithParam<ExactParameters> {
 protected:
  void SetUp() override {
    const absl::StatusOr<BackendRunner*> runner = BackendRunner::Of(std::get<1>(GetParam()));
    if (!runner.ok()) {
      ASSERT_EQ(runner.status().code(), absl::StatusCode::kUnavailable) << runner.status();
      GTEST_SKIP() << runner.status();
    }
    runner_ = *runner;
  }

  DType dtype() const { return std::get<0>(GetParam()); }
  void Run(const Tensors& tensors) {
    ASSERT_EQ(runner_->Run({&tensors.task, 1}), absl::OkStatus());
  }

  BackendRunner* runner_ = nullptr;
};

inline std::string ExactName(const ::testing::TestParamInfo<ExactParameters>& row) {
  const auto& [dtype, backend] = row.param;
  return absl::StrCat(TestName(backend), "_", std::string(Name(dtype)));
}

}  // namespace attend::testing

// Every dtype on every backend that has a device here.
#define ATTEND_INSTANTIATE_EXACT(Fixture)                                           \
  INSTANTIATE_TEST_SUITE_P(                                                         \
      Backends, Fixture,                                                            \
      ::testing::Combine(::testing::Values(DType::kF32, DType::kF16, DType::kBF16), \
                         ::testing::ValuesIn(JudgedBackends())),                    \
      ExactName);                                                                   \
  GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Fixture)

#endif  // ATTEND_TESTS_KERNELS_EXACT_FIXTURE_H_
