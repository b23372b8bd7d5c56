// Small errors that the judge must see whatever the draw, in tasks whose bounds are at their
// widest: large logits, biases near -10,000, rows of a few keys. Each is planted into the oracle's
// answer.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "kernels/reference/number_formats.h"
#include "kernels/reference/reference.h"
#include "tests/testing/expectation.h"
#include "tests/testing/problem.h"
#include "tests/testing/random.h"
#include "tests/testing/task_spec.h"

namespace attend::testing {
namespace {

using reference::LoadElement;
using reference::Rounded;
using reference::StoreElement;

constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr int kRounds = 10;

const std::pair<const char*, TaskSpec> kTasks[] = {
    {"ordinary", {.seqlen_q = 40, .seqlen_k = 50}},
    {"large logits", {.seqlen_q = 40, .seqlen_k = 50, .values = Values::kLarge}},
    {"positive logits", {.seqlen_q = 40, .seqlen_k = 50, .values = Values::kPositive}},
    {"very negative bias",
     {.seqlen_q = 40, .seqlen_k = 50, .bias = BiasSpec{.values = BiasValues::kVeryNegative}}},
    {"few keys", {.seqlen_q = 60, .seqlen_k = 3, .head_dim = 16, .head_dim_v = 3}},
};

// Makes the key at `position` the one that row 0 of head 0 weighs most, so that an error there
// counts.
void MoveBestKey(const AttentionTask& task, int64_t position) {
  const auto load = [](const TensorView& view, int64_t row, int64_t c) {
    return LoadElement(view.data, view.dtype, row * view.row_stride + c);
  };
  int64_t best = 0;
  double best_product = -std::numeric_limits<double>::infinity();
  for (int64_t j = 0; j < task.seqlen_k; ++j) {
    double product = 0;
    for (int64_t c = 0; c < task.head_dim(); ++c)
      product += load(task.q, 0, c) * load(task.k, j, c);
    if (product > best_product) best = j, best_product = product;
  }
  if (!task.bias.absent()) {
    StoreElement(const_cast<void*>(task.bias.data), task.bias.dtype, position, -9990);
  }
  for (const TensorView* view : {&task.k, &task.v}) {
    for (int64_t c = 0; c < view->columns; ++c) {
      const double moved = load(*view, best, c);
      StoreElement(view->data, view->dtype, best * view->row_stride + c, load(*view, position, c));
      StoreElement(view->data, view->dtype, position * view->row_stride + c, moved);
    }
  }
}

// Calls `plant` with fresh tasks, whose row 0 weighs key `best_key` most, and their expectations;
// it says whether the judge accepted.
void ForEachDraw(const TaskSpec& spec, absl::Span<const DType> dtypes, int64_t best_key,
                 const std::string& what,
                 const std::function<bool(const AttentionTask&, const Expectation&)>& plant) {
  for (const DType dtype : dtypes) {
    for (int round = 0; round < kRounds; ++round) {
      TaskSpec drawn = spec;
      drawn.dtype = dtype;
      Problem problem({"planted", {drawn}}, MixSeed(TestSeed(), absl::StrCat("planted", round)));
      const AttentionTask& task = problem.tasks()[0];
      MoveBestKey(task, best_key);
      const Expectation expected = Expect(task);
      reference::Run(task);
      ASSERT_TRUE(Matches(task, expected)) << what;
      EXPECT_FALSE(plant(task, expected))
          << what << " passed: " << Describe(drawn) << "\nATTEND_TEST_SEED=" << TestSeed();
    }
  }
}

TEST(PlantedErrors, KeyDropped) {
  for (const auto& [name, spec] : kTasks) {
    ForEachDraw(spec, kDTypes, spec.seqlen_k - 1, name,
                [](const AttentionTask& task, const Expectation& expected) {
                  AttentionTask wrong = task;
                  --wrong.seqlen_k;
                  reference::Run(wrong);
                  return static_cast<bool>(Matches(task, expected));
                });
  }
}

TEST(PlantedErrors, KeyReadInThePlaceOfAnother) {
  for (const auto& [name, spec] : kTasks) {
    ForEachDraw(spec, kDTypes, spec.seqlen_k - 1, name,
                [](const AttentionTask& task, const Expectation& expected) {
                  for (const TensorView* view : {&task.k, &task.v}) {
                    for (int64_t c = 0; c < view->columns; ++c) {
                      const int64_t last = (task.seqlen_k - 1) * view->row_stride + c;
                      StoreElement(view->data, view->dtype, last - view->row_stride,
                                   LoadElement(view->data, view->dtype, last));
                    }
                  }
                  reference::Run(task);
                  return static_cast<bool>(Matches(task, expected));
                });
  }
}

TEST(PlantedErrors, MaskOneColumnOff) {
  for (const auto& [name, spec] : kTasks) {
    TaskSpec causal = spec;
    causal.mask.causal = true;
    causal.seqlen_q = causal.seqlen_k;
    ForEachDraw(causal, kDTypes, 1, name,
                [](const AttentionTask& task, const Expectation& expected) {
                  AttentionTask wrong = task;
                  wrong.mask.causal = false;
                  wrong.mask.window_right = 1;
                  reference::Run(wrong);
                  return static_cast<bool>(Matches(task, expected));
                });
  }
}

TEST(PlantedErrors, ScaleOffByAThousandth) {
  for (const auto& [name, spec] : kTasks) {
    // Near -10,000 fp32 itself errs by a thousandth.
    if (spec.bias.has_value()) continue;
    ForEachDraw(spec, kDTypes, 0, name, [](const AttentionTask& task, const Expectation& expected) {
      AttentionTask wrong = task;
      wrong.softmax_scale *= 1.001f;
      reference::Run(wrong);
      return static_cast<bool>(Matches(task, expected));
    });
  }
}

// Of the largest score, which the bound goes with.
TEST(PlantedErrors, LogSumExpOffByAThousandth) {
  for (const auto& [name, spec] : kTasks) {
    ForEachDraw(spec, kDTypes, 0, name, [](const AttentionTask& task, const Expectation& expected) {
      for (int64_t i = 0; i < task.seqlen_q; ++i) {
        const double size = std::fabs(expected.answer.max_score[static_cast<size_t>(i)]);
        task.lse.data[i] += static_cast<float>(1e-3 * std::max(1.0, size));
        if (Matches(task, expected)) return true;
        task.lse.data[i] = static_cast<float>(expected.answer.lse[static_cast<size_t>(i)]);
      }
      return false;
    });
  }
}

// The plain formula with one step done in too few bits.
struct Precision {
  const char* name;
  DType product = DType::kF32;      // of q and k
  DType probability = DType::kF32;  // of P
  DType value = DType::kF32;        // of v
};

void RunAt(const Precision& precision, const AttentionTask& task) {
  const auto load = [](const TensorView& view, int64_t head, int64_t row, int64_t c, DType dtype) {
    return Rounded(
        LoadElement(view.data, view.dtype, row * view.row_stride + head * view.head_stride + c),
        dtype);
  };
  std::vector<double> p(static_cast<size_t>(task.seqlen_k));
  for (int64_t h = 0; h < task.heads_q(); ++h) {
    for (int64_t i = 0; i < task.seqlen_q; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < task.seqlen_k; ++j) {
        double product = 0;
        for (int64_t c = 0; c < task.head_dim(); ++c) {
          product +=
              load(task.q, h, i, c, precision.product) * load(task.k, h, j, c, precision.product);
        }
        p[static_cast<size_t>(j)] = std::exp(product * static_cast<double>(task.softmax_scale));
        sum += p[static_cast<size_t>(j)];
      }
      for (int64_t c = 0; c < task.head_dim_v(); ++c) {
        double o = 0;
        for (int64_t j = 0; j < task.seqlen_k; ++j) {
          o += Rounded(p[static_cast<size_t>(j)] / sum, precision.probability) *
               load(task.v, h, j, c, precision.value);
        }
        StoreElement(task.o.data, task.o.dtype, i * task.o.row_stride + h * task.o.head_stride + c,
                     o);
      }
    }
  }
}

TEST(PlantedErrors, Fp32InFewerBits) {
  const TaskSpec spec = {.seqlen_q = 20, .seqlen_k = 50};
  const DType fp32[] = {DType::kF32};
  for (const Precision& precision : {Precision{.name = "P in bf16", .probability = DType::kBF16},
                                     Precision{.name = "P in fp16", .probability = DType::kF16},
                                     Precision{.name = "products of fp16", .product = DType::kF16},
                                     Precision{.name = "products of bf16", .product = DType::kBF16},
                                     Precision{.name = "values in fp16", .value = DType::kF16}}) {
    ForEachDraw(spec, fp32, 0, precision.name,
                [&](const AttentionTask& task, const Expectation& expected) {
                  RunAt({"nothing lost"}, task);
                  EXPECT_TRUE(Matches(task, expected)) << "the loop itself is wrong";
                  RunAt(precision, task);
                  return static_cast<bool>(Matches(task, expected));
                });
  }
}

}  // namespace
}  // namespace attend::testing
