// The Hopper kernels where they differ from the others: NaN and Inf that must stay out of rows that
// do not see them, maxima that lag behind, tiles of several kinds in one batch. Skips itself,
// visibly, where no Hopper device answers; what every backend must do is in the conformance suite.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/attention.h"
#include "kernels/reference/number_formats.h"
#include "kernels/reference/reference.h"
#include "tests/testing/backend_runner.h"
#include "tests/testing/random.h"

namespace attend {
namespace {

using reference::LoadElement;
using reference::StoreElement;
using testing::BackendRunner;
using testing::MixSeed;
using testing::Random;
using testing::TestSeed;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// One sequence in host memory; outputs start as NaN.
struct Sequence {
  Sequence(DType dtype, int64_t sq, int64_t sk, int64_t hq, int64_t hk, int64_t d, int64_t dv) {
    const auto tensor = [&](std::vector<uint16_t>& memory, int64_t rows, int64_t heads,
                            int64_t columns) {
      memory.assign(static_cast<size_t>(rows * heads * columns), 0xffff);
      return TensorView::Contiguous(memory.data(), dtype, MemoryKind::kHost, rows, heads, columns);
    };
    task.q = tensor(q, sq, hq, d);
    task.k = tensor(k, sk, hk, d);
    task.v = tensor(v, sk, hk, dv);
    task.o = tensor(o, sq, hq, dv);
    lse.assign(static_cast<size_t>(sq * hq), std::nanf(""));
    task.lse = {lse.data(), MemoryKind::kHost, sq};
    task.seqlen_q = sq;
    task.seqlen_k = sk;
    task.softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(d)));
  }
  Sequence(const Sequence& other) { *this = other; }
  Sequence& operator=(const Sequence& other) {
    q = other.q, k = other.k, v = other.v, o = other.o, lse = other.lse, task = other.task;
    task.q.data = q.data(), task.k.data = k.data(), task.v.data = v.data(), task.o.data = o.data();
    task.lse.data = lse.data();
    return *this;
  }

  void FillNormal(Random& random) {
    for (const TensorView& view : {task.q, task.k, task.v}) {
      for (int64_t i = 0; i < view.rows * view.heads * view.columns; ++i) {
        StoreElement(view.data, view.dtype, i, random.Normal());
      }
    }
  }

  std::vector<uint16_t> q, k, v, o;
  std::vector<float> lse;
  AttentionTask task;
};

class Sm90ForwardTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<BackendRunner*> runner = BackendRunner::Of("cuda");
    if (!runner.ok()) GTEST_SKIP() << runner.status();
    runner_ = *runner;
    if (runner_->backend().device().architecture != "sm_90") GTEST_SKIP() << "not a Hopper device";
  }

  void Run(const std::vector<AttentionTask>& tasks) {
    ASSERT_EQ(runner_->Run(tasks), absl::OkStatus());
    bool hopper = false;
    for (const KernelLaunches& launch : runner_->report().launches) {
      hopper |= launch.kernel == "forward_sm90" || launch.kernel == "decode_sm90";
    }
    ASSERT_TRUE(hopper) << "another family ran";
  }

  BackendRunner* runner_ = nullptr;
};

// Bad elements in V make NaN or Inf exactly those outputs that depend on one, and leave the bits of
// all others as they are with 0 in their place.
TEST_F(Sm90ForwardTest, BadValuesReachTheRowsThatSeeThemAndNoOther) {
  Random random(MixSeed(TestSeed(), "contain"));
  struct Shape {
    int64_t sq, sk, hq, hk, d, dv;
  };
  // Many heads: several tiles for each multiprocessor, so that notes of one tile meet the next.
  for (const Shape& shape : {Shape{300, 300, 160, 40, 64, 64}, Shape{333, 401, 150, 50, 128, 128},
                             Shape{260, 200, 6, 3, 96, 80}, Shape{200, 300, 4, 4, 192, 128},
                             Shape{300, 300, 3, 1, 192, 192}, Shape{300, 260, 4, 2, 256, 256},
                             Shape{5, 3000, 8, 2, 128, 128}}) {
    for (const int kind : {0, 1, 2}) {
      const DType dtype = random.Chance(0.5) ? DType::kBF16 : DType::kF16;
      Sequence dirty(dtype, shape.sq, shape.sk, shape.hq, shape.hk, shape.d, shape.dv);
      dirty.FillNormal(random);
      dirty.task.mask.causal = kind != 2;
      if (kind == 1) dirty.task.mask.window_left = random.Between(0, 150);
      if (kind == 2)
        dirty.task.mask.window_left = dirty.task.mask.window_right = random.Between(0, 60);
      Sequence clean = dirty;
      struct Bad {
        int64_t key, head, column;
      };
      std::vector<Bad> bads;
      for (int i = 0; i < 12; ++i) {
        const Bad bad = {random.Between(0, shape.sk - 1), random.Between(0, shape.hk - 1),
                         random.Between(0, shape.dv - 1)};
        const double value = random.Chance(0.4) ? kNaN : random.Chance(0.5) ? kInf : -kInf;
        const int64_t at = (bad.key * shape.hk + bad.head) * shape.dv + bad.column;
        StoreElement(dirty.v.data(), dtype, at, value);
        StoreElement(clean.v.data(), dtype, at, 0.0);
        bads.push_back(bad);
      }
      Run({dirty.task});
      Run({clean.task});
      EXPECT_EQ(dirty.lse, clean.lse);
      std::vector<bool> depends(dirty.o.size());
      const int64_t group = shape.hq / shape.hk;
      for (const Bad& bad : bads) {
        for (int64_t row = 0; row < shape.sq; ++row) {
          const KeyRange keys = VisibleKeys(dirty.task.mask, row, shape.sq, shape.sk);
          if (bad.key < keys.begin || bad.key >= keys.end) continue;
          for (int64_t h = bad.head * group; h < (bad.head + 1) * group; ++h) {
            depends[static_cast<size_t>((row * shape.hq + h) * shape.dv + bad.column)] = true;
          }
        }
      }
      int64_t wrong = 0;
      for (size_t i = 0; i < dirty.o.size(); ++i) {
        const bool finite =
            std::isfinite(LoadElement(dirty.o.data(), dtype, static_cast<int64_t>(i)));
        wrong += depends[i] ? finite : dirty.o[i] != clean.o[i];
      }
      EXPECT_EQ(wrong, 0) << "S " << shape.sq << "x" << shape.sk << " D " << shape.d << "/"
                          << shape.dv << " mask " << kind << " of " << dirty.o.size();
    }
  }
}

// Largest error of o and of lse (relative to the largest score) against double precision.
void ExpectClose(const Sequence& sequence, const std::string& what) {
  Sequence expected = sequence;
  std::vector<float> lse(sequence.lse.size());
  absl::StatusOr<BackendRunner*> reference = BackendRunner::Of("reference");
  ASSERT_TRUE(reference.ok()) << reference.status();
  ASSERT_EQ((*reference)->Run({&expected.task, 1}), absl::OkStatus());
  double error = 0, largest = 0, lse_error = 0;
  for (size_t i = 0; i < sequence.o.size(); ++i) {
    const double a = LoadElement(sequence.o.data(), sequence.task.dtype(), static_cast<int64_t>(i));
    const double b = LoadElement(expected.o.data(), sequence.task.dtype(), static_cast<int64_t>(i));
    error = std::max(error, std::isnan(a) ? kInf : std::abs(a - b));
    largest = std::max(largest, std::abs(b));
  }
  for (size_t i = 0; i < sequence.lse.size(); ++i) {
    const double b = static_cast<double>(expected.lse[i]);
    lse_error = std::max(
        lse_error, std::abs(static_cast<double>(sequence.lse[i]) - b) / std::max(1.0, std::abs(b)));
  }
  // Two steps of the type at the largest output for rounding P and O.
  EXPECT_LE(error, 2 * reference::RoundingStep(largest, sequence.task.dtype())) << what;
  EXPECT_LE(lse_error, 1e-5) << what;
}

// The maximum that exponentials start from may lag behind; the answer may not.
TEST_F(Sm90ForwardTest, MaximaThatRiseFallStayOrComeLate) {
  Random random(MixSeed(TestSeed(), "maxima"));
  for (const int64_t d : {64, 96, 128, 192, 256}) {
    for (const bool causal : {false, true}) {
      for (const char* pattern : {"rising", "falling", "equal", "first", "last", "low"}) {
        Sequence sequence(DType::kBF16, 250, 900, 2, 2, d, d);
        sequence.FillNormal(random);
        sequence.task.mask.causal = causal;
        const std::string name = pattern;
        const double strong = std::sqrt(3.0 * std::sqrt(static_cast<double>(d)));
        for (int64_t row = 0; row < 250 * 2; ++row) {
          StoreElement(sequence.q.data(), DType::kBF16, row * d, strong);
        }
        for (int64_t key = 0; key < 900; ++key) {
          const double along = static_cast<double>(key) / 899;
          for (int64_t h = 0; h < 2; ++h) {
            const int64_t at = (key * 2 + h) * d;
            double value = 0;
            if (name == "rising") value = strong * 30 * along;
            if (name == "falling") value = strong * 30 * (1 - along);
            if (name == "first") value = key == 0 ? strong * 40 : 0;
            if (name == "last") value = key == 640 ? strong * 40 : 0;
            if (name == "low") value = -strong * 40;
            StoreElement(sequence.k.data(), DType::kBF16, at, value);
            for (int64_t c = 1; name == "equal" && c < d; ++c) {
              StoreElement(sequence.k.data(), DType::kBF16, at + c, 0.5);
            }
          }
        }
        Run({sequence.task});
        ExpectClose(sequence, absl::StrCat(pattern, " D ", d, causal ? " causal" : " dense"));
      }
    }
  }
}

// Long, short, modified and decode tiles, chunks and merges in one batch give the bits that each
// task gives alone.
TEST_F(Sm90ForwardTest, KindsOfTilesShareABatch) {
  Random random(MixSeed(TestSeed(), "kinds"));
  std::vector<Sequence> sequences;
  for (int i = 0; i < 24; ++i) {
    const int64_t hk = random.Between(1, 3);
    const int64_t sq = i % 4 == 0 ? random.Between(1, 8) : random.Between(30, 1300);
    const int64_t sk = i % 4 == 0 ? random.Between(1, 6000) : random.Between(1, 900);
    Sequence sequence(DType::kF16, sq, sk, hk * random.Between(1, 4), hk, 128, 120);
    sequence.FillNormal(random);
    sequence.task.mask.causal = random.Chance(0.4);
    if (random.Chance(0.3)) sequence.task.mask.window_left = random.Between(0, 300);
    if (random.Chance(0.2)) sequence.task.softcap = 5.0f;
    if (random.Chance(0.2)) sequence.task.softmax_scale = -0.05f;
    sequences.push_back(sequence);
  }
  std::vector<Sequence> together = sequences;
  std::vector<AttentionTask> tasks;
  for (Sequence& sequence : together) tasks.push_back(sequence.task);
  Run(tasks);
  for (size_t i = 0; i < sequences.size(); ++i) {
    Run({sequences[i].task});
    EXPECT_EQ(sequences[i].o, together[i].o) << i;
    EXPECT_EQ(sequences[i].lse, together[i].lse) << i;
    if (i < 8) ExpectClose(sequences[i], absl::StrCat("task ", i));
  }
}

}  // namespace
}  // namespace attend
