// The vocabulary: what Validate refuses, row by row; masks against brute force; counting.

#include "kernels/attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "kernels/errors.h"
#include "tests/testing/random.h"

namespace attend {
namespace {

constexpr int64_t kMax64 = std::numeric_limits<int64_t>::max();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
float memory[1];  // pointers are not followed

AttentionTask GoodTask() {
  const auto view = [](int64_t rows, int64_t heads, int64_t columns) {
    return TensorView::Contiguous(memory, DType::kF16, MemoryKind::kHost, rows, heads, columns);
  };
  AttentionTask task;
  task.q = view(10, 4, 64);
  task.k = view(20, 2, 64);
  task.v = view(20, 2, 48);
  task.o = view(10, 4, 48);
  task.lse.data = memory;
  task.lse.head_stride = 10;
  task.seqlen_q = 10;
  task.seqlen_k = 20;
  return task;
}

void AddBias(AttentionTask& task) {
  task.bias.data = memory;
  task.bias.row_stride = 20;
  task.bias.head_stride = 200;
}

struct Wrong {
  const char* name;
  const char* field;               // what the error must name
  std::vector<const char*> words;  // what it must say, both values among them
  std::function<void(AttentionTask&)> spoil;
};

void PrintTo(const Wrong& wrong, std::ostream* out) { *out << wrong.name; }

class ValidateRefuses : public ::testing::TestWithParam<Wrong> {};

TEST_P(ValidateRefuses, NamingTheField) {
  AttentionTask task = GoodTask();
  ASSERT_EQ(Validate(task), absl::OkStatus());
  GetParam().spoil(task);
  const absl::Status status = Validate(task);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(FieldOf(status).value_or(""), GetParam().field);
  for (const char* word : GetParam().words) {
    EXPECT_NE(status.message().find(word), absl::string_view::npos) << word << " in " << status;
  }
}

using T = AttentionTask;
std::vector<Wrong> WaysToBeWrong() {
  return {
      {"dtype_unknown", "q.data_type", {"7"}, [](T& t) { t.q.dtype = static_cast<DType>(7); }},
      {"dtype_k", "k.data_type", {"bf16", "fp16"}, [](T& t) { t.k.dtype = DType::kBF16; }},
      {"dtype_v", "v.data_type", {"fp32", "fp16"}, [](T& t) { t.v.dtype = DType::kF32; }},
      {"dtype_o", "o.data_type", {"fp32", "fp16"}, [](T& t) { t.o.dtype = DType::kF32; }},
      {"rows_negative", "q.shape", {"-1"}, [](T& t) { t.q.rows = -1; }},
      {"heads_none", "k.shape", {"0", "1"}, [](T& t) { t.k.heads = 0; }},
      {"heads_negative", "q.shape", {"-4", "1"}, [](T& t) { t.q.heads = -4; }},
      {"head_dim_0", "q.shape", {"0", "256"}, [](T& t) { t.q.columns = 0; }},
      {"head_dim_257",
       "q.shape",
       {"257", "256"},
       [](T& t) { t.q.columns = t.q.head_stride = 257; }},
      {"head_dim_v_0", "v.shape", {"0", "256"}, [](T& t) { t.v.columns = 0; }},
      {"head_dim_differs", "k.shape", {"32", "64"}, [](T& t) { t.k.columns = 32; }},
      {"rows_of_v", "v.shape", {"19", "20"}, [](T& t) { t.v.rows = 19; }},
      {"heads_of_v", "v.shape", {"1", "2"}, [](T& t) { t.v.heads = 1; }},
      {"rows_of_o", "o.shape", {"9", "10"}, [](T& t) { t.o.rows = 9; }},
      {"heads_of_o", "o.shape", {"2", "4"}, [](T& t) { t.o.heads = 2; }},
      {"columns_of_o", "o.shape", {"47", "48"}, [](T& t) { t.o.columns = 47; }},
      {"heads_no_multiple",
       "q.shape",
       {"4", "3"},
       [](T& t) { t.k.heads = t.v.heads = 3, t.k.row_stride = t.v.row_stride = 192; }},
      {"fewer_q_heads",
       "q.shape",
       {"4", "8"},
       [](T& t) { t.k.heads = t.v.heads = 8, t.k.row_stride = t.v.row_stride = 512; }},
      {"shape_too_large",
       "q.shape",
       {"64 bits"},
       [](T& t) { t.q.rows = t.o.rows = int64_t{1} << 60; }},
      {"heads_times_columns_too_large",
       "k.shape",
       {"64 bits"},
       [](T& t) { t.k.heads = kMax64 / 8; }},
      {"row_stride_small", "q.strides", {"63", "64"}, [](T& t) { t.q.row_stride = 63; }},
      {"row_stride_zero", "k.strides", {"0", "64"}, [](T& t) { t.k.row_stride = 0; }},
      {"row_stride_negative", "k.strides", {"-128", "64"}, [](T& t) { t.k.row_stride = -128; }},
      {"head_stride_small", "v.strides", {"47", "48"}, [](T& t) { t.v.head_stride = 47; }},
      {"stride_too_large", "k.strides", {"64 bits"}, [](T& t) { t.k.row_stride = kMax64 / 4; }},
      {"head_stride_too_large", "v.strides", {"64 bits"}, [](T& t) { t.v.head_stride = kMax64; }},
      {"outputs_overlap", "o.strides", {"48"}, [](T& t) { t.o.row_stride = t.o.head_stride = 48; }},
      {"q_len_negative", "q_lens", {"-1", "10"}, [](T& t) { t.seqlen_q = -1; }},
      {"q_len_large", "q_lens", {"11", "10"}, [](T& t) { t.seqlen_q = 11; }},
      {"kv_len_negative", "kv_lens", {"-5", "20"}, [](T& t) { t.seqlen_k = -5; }},
      {"kv_len_large", "kv_lens", {"21", "20"}, [](T& t) { t.seqlen_k = 21; }},
      {"pairs_too_many",
       "q.shape",
       {"64 bits"},
       [](T& t) {
         const auto view = [](int64_t heads) {
           return TensorView::Contiguous(memory, DType::kF16, MemoryKind::kHost, int64_t{1} << 40,
                                         heads, 1);
         };
         t.q = t.o = view(1);
         t.k = t.v = view(1);
         t.seqlen_q = t.seqlen_k = int64_t{1} << 40;
         t.lse.head_stride = int64_t{1} << 40;
       }},
      {"scale_nan", "softmax_scale", {"nan"}, [](T& t) { t.softmax_scale = std::nanf(""); }},
      {"scale_infinite", "softmax_scale", {"inf"}, [](T& t) { t.softmax_scale = kInfinity; }},
      {"softcap_negative", "softcap", {"-1"}, [](T& t) { t.softcap = -1; }},
      {"softcap_nan", "softcap", {"nan"}, [](T& t) { t.softcap = std::nanf(""); }},
      {"softcap_infinite", "softcap", {"inf"}, [](T& t) { t.softcap = kInfinity; }},
      {"window_left", "window.left", {"-1"}, [](T& t) { t.mask.window_left = -1; }},
      {"window_right", "window.right", {"-9"}, [](T& t) { t.mask.window_right = -9; }},
      {"lse_stride", "lse.strides", {"9", "10"}, [](T& t) { t.lse.head_stride = 9; }},
      {"lse_stride_too_large",
       "lse.strides",
       {"64 bits"},
       [](T& t) { t.lse.head_stride = kMax64 / 2; }},
      {"bias_dtype",
       "bias.data_type",
       {"bf16", "fp16"},
       [](T& t) { AddBias(t), t.bias.dtype = DType::kBF16; }},
      {"bias_row_stride",
       "bias.strides",
       {"19", "20"},
       [](T& t) { AddBias(t), t.bias.row_stride = 19; }},
      {"bias_head_stride",
       "bias.strides",
       {"-1"},
       [](T& t) { AddBias(t), t.bias.head_stride = -1; }},
      {"bias_too_large",
       "bias.strides",
       {"64 bits"},
       [](T& t) { AddBias(t), t.bias.head_stride = kMax64 / 3; }},
  };
}

std::string WrongName(const ::testing::TestParamInfo<Wrong>& row) { return row.param.name; }

INSTANTIATE_TEST_SUITE_P(Table, ValidateRefuses, ::testing::ValuesIn(WaysToBeWrong()), WrongName);

TEST(Validate, AcceptsEveryEdgeOfTheContract) {
  const std::function<void(AttentionTask&)> edges[] = {
      [](T& t) { t.seqlen_q = 0; },
      [](T& t) { t.seqlen_k = 0; },
      [](T& t) { t.q.rows = t.o.rows = t.seqlen_q = 0; },
      [](T& t) { t.k.rows = t.v.rows = t.seqlen_k = 0; },
      [](T& t) { t.q.data = t.k.data = t.v.data = t.o.data = nullptr; },  // judged before copied
      [](T& t) { t.softmax_scale = 0; },
      [](T& t) { t.softmax_scale = -3; },
      [](T& t) { t.softcap = 1e-30f; },
      [](T& t) { t.mask.window_left = t.mask.window_right = 0; },
      [](T& t) { t.mask.window_left = t.mask.window_right = kMax64; },
      [](T& t) { t.lse.data = nullptr, t.lse.head_stride = -1; },
      [](T& t) { AddBias(t); },
      [](T& t) { AddBias(t), t.bias.dtype = DType::kF16; },
      [](T& t) { AddBias(t), t.bias.row_stride = t.bias.head_stride = 0; },
      [](T& t) { AddBias(t), t.bias.head_stride = 20, t.bias.row_stride = 0; },
      [](T& t) { t.q.row_stride = 300; },
      [](T& t) { t.o.row_stride = 48, t.o.head_stride = 480; },  // heads first
      [](T& t) { t.k.row_stride = t.k.head_stride = 64; },       // inputs may overlap
      [](T& t) { t.lse.head_stride = 1000; },
      // Empty tensors have no elements whose strides could be wrong.
      [](T& t) {
        t.q.rows = t.o.rows = t.seqlen_q = 0;
        t.q.row_stride = t.q.head_stride = t.o.row_stride = t.o.head_stride = 0;
      },
      // Past 2^31 elements.
      [](T& t) { t.q.row_stride = int64_t{1} << 40, t.k.head_stride = int64_t{1} << 50; },
  };
  for (size_t i = 0; i < std::size(edges); ++i) {
    AttentionTask task = GoodTask();
    edges[i](task);
    EXPECT_EQ(Validate(task), absl::OkStatus()) << "edge " << i;
  }
}

TEST(TensorView, ContiguousStrides) {
  const TensorView view =
      TensorView::Contiguous(memory, DType::kBF16, MemoryKind::kPinned, 7, 5, 3);
  EXPECT_EQ(view.row_stride, 15);
  EXPECT_EQ(view.head_stride, 3);
  EXPECT_EQ(view.dtype, DType::kBF16);
  EXPECT_EQ(view.memory, MemoryKind::kPinned);
  EXPECT_FALSE(view.absent());
  EXPECT_TRUE(TensorView().absent());
}

MaskSpec RandomMask(testing::Random& random) {
  const auto bound = [&]() -> std::optional<int64_t> {
    switch (random.Between(0, 3)) {
      case 0:
        return std::nullopt;
      case 1:
        return random.Between(0, 2);
      case 2:
        return random.Between(0, 40);
      default:
        return kMax64 - random.Between(0, 2);
    }
  };
  MaskSpec mask;
  mask.causal = random.Chance(0.4);
  mask.window_left = bound();
  mask.window_right = bound();
  return mask;
}

TEST(VisibleKeys, AgreesWithTheDefinition) {
  const uint64_t seed = testing::TestSeed();
  testing::Random random(seed);
  for (int trial = 0; trial < 3000; ++trial) {
    const int64_t sq = random.Between(0, 30), sk = random.Between(0, 30);
    const MaskSpec mask = RandomMask(random);
    int64_t pairs = 0;
    for (int64_t i = 0; i < sq; ++i) {
      const KeyRange range = VisibleKeys(mask, i, sq, sk);
      ASSERT_LE(0, range.begin);
      ASSERT_LE(range.begin, range.end);
      ASSERT_LE(range.end, sk);
      for (int64_t j = 0; j < sk; ++j) {
        // In 128 bits, straight from the contract.
        const __int128 position = __int128{i} + sk - sq;
        const bool sees = (!mask.causal || j <= position) &&
                          (!mask.window_left || j >= position - *mask.window_left) &&
                          (!mask.window_right || j <= position + *mask.window_right);
        ASSERT_EQ(range.begin <= j && j < range.end, sees)
            << "row " << i << " key " << j << " Sq " << sq << " Sk " << sk << " seed " << seed;
        pairs += sees ? 1 : 0;
      }
    }
    ASSERT_EQ(VisiblePairs(mask, sq, sk), pairs) << "Sq " << sq << " Sk " << sk << " seed " << seed;
  }
}

TEST(VisiblePairs, LargeLengthsStayExact) {
  MaskSpec causal;
  causal.causal = true;
  const int64_t n = int64_t{1} << 31;
  EXPECT_EQ(VisiblePairs(causal, n, n), n / 2 * (n + 1));
  EXPECT_EQ(VisiblePairs({}, n, n), n * n);
  EXPECT_EQ(VisiblePairs({}, kMax64 / 2, kMax64 / 2), kMax64) << "saturates";
  MaskSpec window;
  window.window_left = window.window_right = 1;
  EXPECT_EQ(VisiblePairs(window, n, n), 3 * n - 2);
}

TEST(Counting, FlopsAndScoreBytes) {
  AttentionTask task = GoodTask();  // 10 x 20, 4 heads, 64 and 48 columns
  EXPECT_EQ(Flops(task), 2.0 * (64 + 48) * 4 * 200);
  EXPECT_EQ(ScoreMatrixBytes(task), 4 * 200 * 2);
  task.mask.causal = true;
  EXPECT_EQ(Flops(task), 2.0 * (64 + 48) * 4 * 155);  // 11 + 12 + ... + 20
  EXPECT_EQ(ScoreMatrixBytes(task), 4 * 200 * 2) << "unfused attention stores masked scores too";
  task.seqlen_k = 0;
  EXPECT_EQ(Flops(task), 0);
  EXPECT_EQ(ScoreMatrixBytes(task), 0);
  task.seqlen_q = task.seqlen_k = int64_t{1} << 31;
  EXPECT_EQ(ScoreMatrixBytes(task), kMax64) << "saturates";
}

TEST(Checked, MultiplyAndAdd) {
  EXPECT_EQ(CheckedMultiply(3, 4), 12);
  EXPECT_EQ(CheckedMultiply(0, kMax64), 0);
  EXPECT_EQ(CheckedMultiply(kMax64, 1), kMax64);
  EXPECT_EQ(CheckedMultiply(kMax64, 2), std::nullopt);
  EXPECT_EQ(CheckedMultiply(int64_t{1} << 32, int64_t{1} << 31), std::nullopt);
  EXPECT_EQ(CheckedMultiply(-1, 2), std::nullopt);
  EXPECT_EQ(CheckedMultiply(2, -1), std::nullopt);
  EXPECT_EQ(CheckedAdd(kMax64 - 1, 1), kMax64);
  EXPECT_EQ(CheckedAdd(kMax64, 1), std::nullopt);
  EXPECT_EQ(CheckedAdd(-1, 1), std::nullopt);
}

TEST(Names, DTypes) {
  EXPECT_EQ(Name(DType::kF32), "fp32");
  EXPECT_EQ(Name(DType::kF16), "fp16");
  EXPECT_EQ(Name(DType::kBF16), "bf16");
}

}  // namespace
}  // namespace attend
