// The oracle against values worked out by hand, one rule of the contract at a time.

#include "kernels/reference/reference.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/backend.h"
#include "kernels/reference/number_formats.h"
#include "kernels/reference/reference_backend.h"

namespace attend::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr float kFloatInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr double kNear = 1e-12;

// One head, one column: q, k and v are plain lists, scale 1.
struct Line {
  Line(std::vector<float> q_values, std::vector<float> k_values, std::vector<float> v_values)
      : q(std::move(q_values)), k(std::move(k_values)), v(std::move(v_values)) {
    const auto view = [](std::vector<float>& values) {
      return TensorView::Contiguous(values.data(), DType::kF32, MemoryKind::kHost,
                                    static_cast<int64_t>(values.size()), 1, 1);
    };
    o.assign(q.size(), kNaN);
    lse.assign(q.size(), kNaN);
    task.q = view(q);
    task.k = view(k);
    task.v = view(v);
    task.o = view(o);
    task.lse.data = lse.data();
    task.lse.head_stride = static_cast<int64_t>(q.size());
    task.seqlen_q = static_cast<int64_t>(q.size());
    task.seqlen_k = static_cast<int64_t>(k.size());
  }
  Answer Compute() const {
    EXPECT_EQ(Validate(task), absl::OkStatus());
    return ComputeAll(task);
  }

  std::vector<float> q, k, v, o, lse;
  AttentionTask task;
};

TEST(Reference, TwoKeys) {
  // Scores ln 1 = 0 and ln 3: weights 1/4 and 3/4.
  Line line({1}, {0, std::log(3.0f)}, {10, 20});
  const Answer answer = line.Compute();
  EXPECT_NEAR(answer.o[0], 17.5, 1e-6);  // ln 3 is rounded to fp32
  EXPECT_NEAR(answer.lse[0], std::log(4.0), 1e-6);
  EXPECT_NEAR(answer.max_score[0], std::log(3.0), 1e-6);
  EXPECT_EQ(answer.tainted[0], 0);
}

TEST(Reference, ScaleMultipliesTheProduct) {
  Line line({2}, {1, 3}, {0, 1});
  line.task.softmax_scale = -0.5f;  // scores -1 and -3
  const Answer answer = line.Compute();
  EXPECT_NEAR(answer.o[0], 1 / (1 + std::exp(2.0)), kNear);
  EXPECT_NEAR(answer.lse[0], -1 + std::log(1 + std::exp(-2.0)), kNear);
}

TEST(Reference, SoftcapBendsScores) {
  Line line({1}, {0, 4}, {0, 1});
  line.task.softcap = 2;
  const double score = 2 * std::tanh(2.0);
  EXPECT_NEAR(line.Compute().o[0], std::exp(score) / (1 + std::exp(score)), kNear);
}

TEST(Reference, BiasIsAddedAfterTheSoftcap) {
  Line line({1}, {0, 4}, {0, 1});
  line.task.softcap = 2;
  const float bias[] = {0.5f, -1};
  line.task.bias.data = bias;
  const double score = 2 * std::tanh(2.0) - 1.5;
  EXPECT_NEAR(line.Compute().o[0], std::exp(score) / (1 + std::exp(score)), kNear);
}

TEST(Reference, AlibiCountsFromTheBottomRight) {
  // Two queries over three keys stand at positions 1 and 2.
  Line line({0, 0}, {1, 1, 1}, {1, 0, 0});
  const float slope[] = {1};
  line.task.alibi_slopes.data = slope;
  const Answer answer = line.Compute();
  const double e1 = std::exp(-1.0), e2 = std::exp(-2.0);
  EXPECT_NEAR(answer.o[0], e1 / (1 + 2 * e1), kNear);
  EXPECT_NEAR(answer.o[1], e2 / (1 + e1 + e2), kNear);
}

TEST(Reference, CausalAlignsBottomRight) {
  // Positions 1 and 2 of three keys: means of the first two and of all three.
  Line line({0, 0}, {1, 1, 1}, {3, 6, 12});
  line.task.mask.causal = true;
  const Answer answer = line.Compute();
  EXPECT_NEAR(answer.o[0], 4.5, kNear);
  EXPECT_NEAR(answer.o[1], 7, kNear);
  EXPECT_NEAR(answer.lse[0], std::log(2.0), kNear);
}

TEST(Reference, RowsBeforeTheFirstKeySeeNothing) {
  // Three queries over one key stand at positions -2, -1 and 0.
  Line line({1, 1, 1}, {1}, {5});
  line.task.mask.causal = true;
  const Answer answer = line.Compute();
  EXPECT_EQ(answer.o, (std::vector<double>{0, 0, 5}));
  EXPECT_EQ(answer.lse, (std::vector<double>{-kInfinity, -kInfinity, 1}));
}

TEST(Reference, WindowBoundsAreInclusive) {
  Line line({0, 0, 0, 0}, {1, 1, 1, 1}, {1, 10, 100, 1000});
  line.task.mask.window_left = 1;
  line.task.mask.window_right = 1;
  const Answer answer = line.Compute();
  EXPECT_NEAR(answer.o[0], 11.0 / 2, kNear);
  EXPECT_NEAR(answer.o[1], 111.0 / 3, kNear);
  EXPECT_NEAR(answer.o[2], 1110.0 / 3, kNear);
  EXPECT_NEAR(answer.o[3], 1100.0 / 2, kNear);
}

TEST(Reference, WindowOfZeroIsNoAbsentWindow) {
  Line line({0, 0}, {1, 1}, {2, 4});
  line.task.mask.window_left = 0;
  const Answer answer = line.Compute();
  EXPECT_NEAR(answer.o[0], 3, kNear);
  EXPECT_NEAR(answer.o[1], 4, kNear);
}

TEST(Reference, SinkTakesItsShareOfTheDenominator) {
  Line line({0}, {1, 1}, {6, 6});
  const float sink[] = {std::log(2.0f)};  // as much as both keys
  line.task.sinks.data = sink;
  line.task.softmax_scale = 100;  // does not touch the sink
  const Answer answer = line.Compute();
  EXPECT_NEAR(answer.o[0], 3, 1e-6);
  EXPECT_NEAR(answer.lse[0], std::log(4.0), 1e-6);
}

TEST(Reference, RowsThatSeeNothingKeepTheirSink) {
  Line line({1}, {}, {});
  const float sink[] = {1.25f};
  line.task.sinks.data = sink;
  const Answer answer = line.Compute();
  EXPECT_EQ(answer.o[0], 0);
  EXPECT_EQ(answer.lse[0], 1.25);
}

TEST(Reference, BiasOfMinusInfinityHidesNaN) {
  Line line({1, 1}, {kNaN, 2}, {kNaN, 7});
  const float bias[] = {-kFloatInfinity, 0};
  line.task.bias.data = bias;
  const Answer answer = line.Compute();
  EXPECT_EQ(answer.o, (std::vector<double>{7, 7}));
  EXPECT_EQ(answer.tainted, (std::vector<uint8_t>{0, 0}));
}

TEST(Reference, NaNReachesTheRowsThatSeeIt) {
  Line line({1, 1, 1}, {1, kNaN, 1}, {1, 1, 1});
  line.task.mask.causal = true;
  const Answer answer = line.Compute();
  EXPECT_EQ(answer.o[0], 1);
  EXPECT_TRUE(std::isnan(answer.o[1]));
  EXPECT_TRUE(std::isnan(answer.o[2]));
  EXPECT_EQ(answer.tainted, (std::vector<uint8_t>{0, 1, 1}));
}

TEST(Reference, PaddingIsWrittenAndNeverRead) {
  Line line({0, kNaN}, {1, 1, kNaN}, {2, 4, kNaN});
  line.task.seqlen_q = 1;
  line.task.seqlen_k = 2;
  const float sink[] = {3};
  line.task.sinks.data = sink;
  reference::Run(line.task);
  EXPECT_GT(line.o[0], 0);
  EXPECT_EQ(line.o[1], 0);
  EXPECT_EQ(line.lse[1], -kFloatInfinity) << "a padded row has no sink";
}

TEST(Reference, HugeScoresStayFinite) {
  Line line({1e18f}, {1e18f, -1e18f}, {3, 5});
  const Answer answer = line.Compute();
  EXPECT_EQ(answer.o[0], 3);
  EXPECT_NEAR(answer.lse[0] / 1e36, 1, 1e-6);
  Line low({1}, {-5000, -5001}, {0, 1});
  EXPECT_NEAR(low.Compute().o[0], 1 / (1 + std::exp(1.0)), kNear);
}

TEST(Reference, QueryHeadsShareKeysByGroup) {
  // Four query heads over two kv heads; one key each, so o is the kv head's value.
  std::vector<float> q(4, 1), k(2, 1), v = {10, 20}, o(4, kNaN);
  AttentionTask task;
  task.q = TensorView::Contiguous(q.data(), DType::kF32, MemoryKind::kHost, 1, 4, 1);
  task.k = TensorView::Contiguous(k.data(), DType::kF32, MemoryKind::kHost, 1, 2, 1);
  task.v = TensorView::Contiguous(v.data(), DType::kF32, MemoryKind::kHost, 1, 2, 1);
  task.o = TensorView::Contiguous(o.data(), DType::kF32, MemoryKind::kHost, 1, 4, 1);
  task.seqlen_q = task.seqlen_k = 1;
  reference::Run(task);
  EXPECT_EQ(o, (std::vector<float>{10, 10, 20, 20}));
}

TEST(Reference, ChosenRowsAndHeadsAreThoseOfTheWhole) {
  Line line({1, 2, 3, 4}, {0.5f, -1, 2}, {1, 2, 3});
  const Answer whole = line.Compute();
  const int64_t rows[] = {3, 1};
  const int64_t heads[] = {0};
  const Answer part = ComputeRows(line.task, heads, rows);
  EXPECT_EQ(part.o, (std::vector<double>{whole.o[3], whole.o[1]}));
  EXPECT_EQ(part.lse, (std::vector<double>{whole.lse[3], whole.lse[1]}));
}

TEST(Reference, WritesTheTasksDType) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    uint16_t q[1], k[2], v[2], o[1];
    StoreElement(q, dtype, 0, 0);
    for (int i = 0; i < 2; ++i) StoreElement(k, dtype, i, 1);
    StoreElement(v, dtype, 0, 1);
    StoreElement(v, dtype, 1, 1 + RoundingStep(1, dtype));  // their mean is a tie: to even
    AttentionTask task;
    task.q = TensorView::Contiguous(q, dtype, MemoryKind::kHost, 1, 1, 1);
    task.k = TensorView::Contiguous(k, dtype, MemoryKind::kHost, 2, 1, 1);
    task.v = TensorView::Contiguous(v, dtype, MemoryKind::kHost, 2, 1, 1);
    task.o = TensorView::Contiguous(o, dtype, MemoryKind::kHost, 1, 1, 1);
    task.seqlen_q = 1;
    task.seqlen_k = 2;
    reference::Run(task);
    EXPECT_EQ(LoadElement(o, dtype, 0), 1);
  }
}

TEST(Reference, SeesEveryBoundOfSixtyFourBits) {
  MaskSpec mask;
  mask.window_left = std::numeric_limits<int64_t>::max();
  mask.window_right = std::numeric_limits<int64_t>::max();
  EXPECT_TRUE(Sees(mask, 0, 5, 1000, 6));
  EXPECT_TRUE(Sees(mask, 999, 0, 1000, 1000));
  mask.causal = true;
  EXPECT_FALSE(Sees(mask, 0, 5, 1000, 6));
}

TEST(ReferenceBackend, RunsABatch) {
  absl::StatusOr<std::unique_ptr<Backend>> backend = MakeBackend("reference", {});
  ASSERT_EQ(backend.status(), absl::OkStatus());
  absl::StatusOr<std::unique_ptr<Executor>> executor = (*backend)->MakeExecutor();
  ASSERT_EQ(executor.status(), absl::OkStatus());
  Line first({0}, {1, 1}, {2, 4}), second({0}, {1}, {9});
  const AttentionTask tasks[] = {first.task, second.task};
  BatchReport report;
  ASSERT_EQ((*executor)->Run({tasks}, &report), absl::OkStatus());
  EXPECT_EQ(first.o[0], 3);
  EXPECT_EQ(second.o[0], 9);
  EXPECT_EQ(report.bytes_in, 0);
  EXPECT_GE(report.kernel.end_seconds, report.kernel.begin_seconds);
  first.task.q.memory = MemoryKind::kDevice;
  EXPECT_EQ((*backend)->Supports(first.task).code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace attend::reference
