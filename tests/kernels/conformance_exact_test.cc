// What must hold exactly on every backend, whatever the rounding: which keys a row sees, counted
// by indicator values at any length; the same bits whoever shares the batch; every option having
// an effect; batches and offsets past 16 and 32 bits.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/reference/number_formats.h"
#include "kernels/reference/reference.h"
#include "tests/testing/backend_runner.h"
#include "tests/testing/case_table.h"
#include "tests/testing/problem.h"
#include "tests/testing/random.h"

namespace attend::testing {
namespace {

using reference::LoadElement;
using reference::StoreElement;

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

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
    for (int64_t i = 0; i < sq * hq * dv; ++i) StoreElement(task.o.data, dtype, i, kNaN);
  }

  static int64_t Index(const TensorView& view, int64_t row, int64_t head, int64_t column) {
    return row * view.row_stride + head * view.head_stride + column;
  }
  static void Set(const TensorView& view, int64_t row, int64_t head, int64_t column, double value) {
    StoreElement(view.data, view.dtype, Index(view, row, head, column), value);
  }
  double O(int64_t row, int64_t head, int64_t column) const {
    return LoadElement(task.o.data, task.o.dtype, Index(task.o, row, head, column));
  }

  AttentionTask task;
  std::vector<std::vector<float>> memories;  // floats: room enough for every dtype
};

using Parameters = std::tuple<DType, std::string>;

class Exact : public ::testing::TestWithParam<Parameters> {
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

std::string RowName(const ::testing::TestParamInfo<Parameters>& row) {
  const auto& [dtype, backend] = row.param;
  return absl::StrCat(TestName(backend), "_", std::string(Name(dtype)));
}

INSTANTIATE_TEST_SUITE_P(Backends, Exact,
                         ::testing::Combine(::testing::Values(DType::kF32, DType::kF16,
                                                              DType::kBF16),
                                            ::testing::ValuesIn(JudgedBackends())),
                         RowName);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Exact);

MaskSpec RandomMask(Random& random) {
  const auto bound = [&]() -> std::optional<int64_t> {
    switch (random.Between(0, 3)) {
      case 0:
        return std::nullopt;
      case 1:
        return random.Between(0, 3);
      case 2:
        return random.Between(0, 300);
      default:
        return std::numeric_limits<int64_t>::max() - random.Between(0, 5);
    }
  };
  MaskSpec mask;
  mask.causal = random.Chance(0.5);
  mask.window_left = bound();
  mask.window_right = bound();
  return mask;
}

// All scores alike and V the unit matrix: o[i][j] is 1 / n where row i sees key j, and 0 elsewhere.
TEST_P(Exact, EachRowSeesItsKeysAndNoOthers) {
  Random random(MixSeed(TestSeed(), "sees"));
  for (int trial = 0; trial < 40; ++trial) {
    const int64_t sk = random.Between(1, 256);
    const int64_t sq = random.Chance(0.3) ? random.Between(1, 4) : random.Between(1, 300);
    Tensors tensors(dtype(), sq, sk, 2, 1, 16, sk);
    tensors.task.mask = RandomMask(random);
    for (int64_t j = 0; j < sk; ++j) Tensors::Set(tensors.task.v, j, 0, j, 1);
    Run(tensors);
    for (int64_t i = 0; i < sq; ++i) {
      int64_t visible = 0;
      for (int64_t j = 0; j < sk; ++j) {
        visible += reference::Sees(tensors.task.mask, i, j, sq, sk) ? 1 : 0;
      }
      for (int64_t j = 0; j < sk; ++j) {
        const bool sees = reference::Sees(tensors.task.mask, i, j, sq, sk);
        for (int64_t h = 0; h < 2; ++h) {
          const double o = tensors.O(i, h, j);
          ASSERT_TRUE(sees ? std::fabs(o * static_cast<double>(visible) - 1) < 0.02 : o == 0)
              << "row " << i << " key " << j << " head " << h << " Sq " << sq << " Sk " << sk
              << " o " << o << " visible " << visible << " ATTEND_TEST_SEED=" << TestSeed();
        }
      }
    }
  }
}

// All scores alike, V marks blocks of 64 keys: o tells how many keys of each block were counted.
TEST_P(Exact, NoKeyIsDroppedOrDoubledAtAnyLength) {
  constexpr int64_t kBlock = 64;
  Random random(MixSeed(TestSeed(), "count"));
  const struct {
    int64_t sq, sk, hq, hk;
  } shapes[] = {{1, Scaled(16384), 4, 1},
                {3, Scaled(16384) - random.Between(1, 200), 2, 2},
                {70, Scaled(8192) + random.Between(0, 300), 2, 1},
                {1, 1 + random.Between(0, 3000), 8, 1},
                {130, Scaled(4096) - random.Between(0, 100), 1, 1}};
  for (const auto& [sq, sk, hq, hk] : shapes) {
    const int64_t blocks = (sk + kBlock - 1) / kBlock;
    for (int64_t pass = 0; pass < blocks; pass += kMaxHeadDim) {
      const int64_t columns = std::min(kMaxHeadDim, blocks - pass);
      Tensors tensors(dtype(), sq, sk, hq, hk, 32, columns);
      tensors.task.mask.causal = true;
      for (int64_t j = 0; j < sk; ++j) {
        const int64_t column = j / kBlock - pass;
        for (int64_t h = 0; h < hk && column >= 0 && column < columns; ++h) {
          Tensors::Set(tensors.task.v, j, h, column, 1);
        }
      }
      Run(tensors);
      for (int64_t i = 0; i < sq; ++i) {
        const int64_t visible = sk - sq + i + 1;
        for (int64_t c = 0; c < columns; ++c) {
          const int64_t first = (pass + c) * kBlock;
          const int64_t count = std::clamp<int64_t>(visible - first, 0, kBlock);
          for (int64_t h = 0; h < hq; ++h) {
            const double counted = tensors.O(i, h, c) * static_cast<double>(visible);
            ASSERT_LT(std::fabs(counted - static_cast<double>(count)), 0.5)
                << "keys " << first << " on, row " << i << " head " << h << " Sq " << sq << " Sk "
                << sk << " ATTEND_TEST_SEED=" << TestSeed();
          }
        }
      }
    }
  }
}

// Every row's scores single out one key, whose V row is its number in binary: o is that row.
TEST_P(Exact, EveryRowFindsItsKeyAtAnyLength) {
  constexpr int64_t kDim = 64;
  constexpr int64_t kBits = 17;
  Random random(MixSeed(TestSeed(), "find"));
  for (const auto& [sq, sk, causal] :
       {std::tuple<int64_t, int64_t, bool>{100, Scaled(20000), false},
        {1, Scaled(30000), false},
        {257, 700, true}}) {
    Tensors tensors(dtype(), sq, sk, 2, 1, kDim, kBits);
    tensors.task.mask.causal = causal;
    tensors.task.softmax_scale = 4;  // a match scores 256, any other key far less
    std::vector<uint64_t> codes(static_cast<size_t>(sk));
    for (int64_t j = 0; j < sk; ++j) {
      codes[static_cast<size_t>(j)] = random.Next();
      for (int64_t c = 0; c < kDim; ++c) {
        const bool one = ((codes[static_cast<size_t>(j)] >> c) & 1) != 0;
        Tensors::Set(tensors.task.k, j, 0, c, one ? 1 : -1);
      }
      for (int64_t b = 0; b < kBits; ++b) {
        Tensors::Set(tensors.task.v, j, 0, b, static_cast<double>((j >> b) & 1));
      }
    }
    std::vector<int64_t> wanted;
    for (int64_t i = 0; i < sq; ++i) {
      for (int64_t h = 0; h < 2; ++h) {
        wanted.push_back(random.Between(0, causal ? i + sk - sq : sk - 1));
        const uint64_t code = codes[static_cast<size_t>(wanted.back())];
        for (int64_t c = 0; c < kDim; ++c) {
          Tensors::Set(tensors.task.q, i, h, c, ((code >> c) & 1) != 0 ? 1 : -1);
        }
      }
    }
    Run(tensors);
    for (int64_t i = 0; i < sq; ++i) {
      for (int64_t h = 0; h < 2; ++h) {
        const int64_t want = wanted[static_cast<size_t>(2 * i + h)];
        int64_t got = 0;
        for (int64_t b = 0; b < kBits; ++b) {
          const double bit = tensors.O(i, h, b);
          ASSERT_TRUE(std::fabs(bit) < 1e-3 || std::fabs(bit - 1) < 1e-3) << bit;
          got |= static_cast<int64_t>(std::lround(bit)) << b;
        }
        ASSERT_EQ(got, want) << "row " << i << " head " << h << " Sk " << sk
                             << " ATTEND_TEST_SEED=" << TestSeed();
      }
    }
  }
}

// Padding and masked keys hold NaN in one run and ordinary numbers in the other.
TEST_P(Exact, HiddenBitsChangeNothing) {
  std::vector<uint8_t> bits;
  for (const Trap trap : {Trap::kNone, Trap::kHidden}) {
    Case test_case = {"hidden_bits", {}};
    MaskSpec window;
    window.window_left = 21;
    window.window_right = 0;
    test_case.tasks.push_back({.seqlen_q = 30, .seqlen_k = 170, .mask = window, .trap = trap});
    test_case.tasks.push_back(
        {.seqlen_q = 1, .seqlen_k = 900, .heads_q = 4, .heads_k = 1, .mask = window, .trap = trap});
    for (TaskSpec& spec : test_case.tasks) spec.dtype = dtype();
    Problem problem(test_case, TestSeed());
    problem.PoisonOutputs();
    ASSERT_EQ(runner_->Run(problem.tasks()), absl::OkStatus());
    if (trap == Trap::kNone) bits = problem.OutputBytes();
    EXPECT_TRUE(problem.OutputBytes() == bits) << "ATTEND_TEST_SEED=" << TestSeed();
  }
}

std::vector<uint8_t> BytesOf(const AttentionTask& task) {
  std::vector<uint8_t> bytes;
  const auto append = [&](const void* data, int64_t count) {
    const auto* first = static_cast<const uint8_t*>(data);
    bytes.insert(bytes.end(), first, first + count);
  };
  append(task.o.data, task.padded_q() * task.o.row_stride * ByteSize(task.o.dtype));
  if (!task.lse.absent()) append(task.lse.data, task.heads_q() * task.lse.head_stride * 4);
  return bytes;
}

TEST_P(Exact, SameBitsWhoeverSharesTheBatch) {
  Random random(MixSeed(TestSeed(), "company"));
  MaskSpec causal;
  causal.causal = true;
  const TaskSpec subjects[] = {
      {.seqlen_q = 150, .seqlen_k = 310, .heads_q = 4, .heads_k = 2},
      {.seqlen_q = 200,
       .seqlen_k = 200,
       .heads_q = 2,
       .heads_k = 2,
       .head_dim = 128,
       .mask = causal},
      {.seqlen_q = 1, .seqlen_k = Scaled(5000), .heads_q = 8, .heads_k = 1, .head_dim = 128},
      {.seqlen_q = 3,
       .seqlen_k = Scaled(3000),
       .heads_q = 4,
       .heads_k = 4,
       .mask = causal,
       .sinks = Sinks::kNormal},
      {.seqlen_q = 40, .seqlen_k = 70, .head_dim = 37, .head_dim_v = 51, .alibi = true},
  };
  for (const TaskSpec& subject : subjects) {
    Case test_case = {"company", {subject}};
    for (int i = 0; i < 9; ++i) {
      // Mates of the same dimensions share the subject's kernel class, most likely.
      TaskSpec mate = RandomTask(random);
      mate.head_dim = subject.head_dim;
      mate.head_dim_v = subject.head_dim_v;
      mate.trap = i == 0 ? Trap::kInValue : Trap::kNone;
      test_case.tasks.push_back(mate);
    }
    for (TaskSpec& spec : test_case.tasks) spec.dtype = dtype();
    Problem problem(test_case, TestSeed());
    const AttentionTask& task = problem.tasks()[0];
    const auto run = [&](const std::vector<AttentionTask>& tasks, bool elsewhere) {
      problem.PoisonOutputs();
      EXPECT_EQ(elsewhere ? runner_->RunElsewhere(tasks) : runner_->Run(tasks), absl::OkStatus());
      return BytesOf(task);
    };
    const std::vector<uint8_t> alone = run({task}, false);
    std::vector<AttentionTask> company(problem.tasks().begin(), problem.tasks().end());
    EXPECT_TRUE(run(company, false) == alone) << "first of the batch, " << Describe(subject);
    std::rotate(company.begin(), company.begin() + 5, company.end());
    EXPECT_TRUE(run(company, false) == alone) << "in the middle, " << Describe(subject);
    EXPECT_TRUE(run(company, true) == alone) << "on another executor, " << Describe(subject);
    EXPECT_TRUE(run({task}, false) == alone) << "again, " << Describe(subject);
    if (HasFailure())
      std::printf("ATTEND_TEST_SEED=%llu\n", static_cast<unsigned long long>(TestSeed()));
  }
}

TEST_P(Exact, EveryOptionHasAnEffect) {
  const TaskSpec base = {.seqlen_q = 70, .seqlen_k = 90, .heads_q = 4, .heads_k = 2, .lse = false};
  const auto bytes_of = [&](TaskSpec spec) {
    spec.dtype = dtype();
    Problem problem({"effect", {spec}}, TestSeed());
    problem.PoisonOutputs();
    EXPECT_EQ(runner_->Run(problem.tasks()), absl::OkStatus());
    std::vector<uint8_t> bytes = BytesOf(problem.tasks()[0]);
    return bytes;
  };
  const std::pair<const char*, std::function<void(TaskSpec&)>> options[] = {
      {"scale", [](TaskSpec& s) { s.scale = 0.3f; }},
      {"softcap", [](TaskSpec& s) { s.softcap = 1; }},
      {"causal", [](TaskSpec& s) { s.mask.causal = true; }},
      {"window.left", [](TaskSpec& s) { s.mask.window_left = 0; }},
      {"window.right", [](TaskSpec& s) { s.mask.window_right = 0; }},
      {"bias", [](TaskSpec& s) { s.bias = BiasSpec{}; }},
      {"alibi", [](TaskSpec& s) { s.alibi = true; }},
      {"sinks", [](TaskSpec& s) { s.sinks = Sinks::kNormal; }},
      {"kv_lens", [](TaskSpec& s) { s.seqlen_k -= 1, s.padding_k += 1; }},
      {"q_lens", [](TaskSpec& s) { s.seqlen_q -= 1, s.padding_q += 1; }},
  };
  const std::vector<uint8_t> plain = bytes_of(base);
  for (const auto& [name, change] : options) {
    TaskSpec spec = base;
    change(spec);
    EXPECT_FALSE(bytes_of(spec) == plain) << name;
  }
}

// Each task's values are its own number, so an answer in the wrong place shows.
TEST_P(Exact, MoreTasksThanSixteenBitsCount) {
  constexpr int64_t kTasks = 70000;
  constexpr int64_t kDim = 8, kRows = 2, kKeys = 3;
  Tensors all(dtype(), kTasks * kRows, kTasks * kKeys, 1, 1, kDim, kDim);
  std::vector<AttentionTask> tasks;
  const auto part = [](TensorView view, int64_t first, int64_t rows) {
    view.data = static_cast<char*>(view.data) + first * view.row_stride * ByteSize(view.dtype);
    view.rows = rows;
    return view;
  };
  const auto value = [](int64_t task, int64_t c) {
    return static_cast<double>((task + 3 * c) % 251);
  };
  for (int64_t t = 0; t < kTasks; ++t) {
    for (int64_t j = 0; j < kKeys; ++j) {
      for (int64_t c = 0; c < kDim; ++c) {
        Tensors::Set(all.task.v, t * kKeys + j, 0, c, value(t, c));
      }
    }
    AttentionTask task;
    task.q = part(all.task.q, t * kRows, kRows);
    task.k = part(all.task.k, t * kKeys, kKeys);
    task.v = part(all.task.v, t * kKeys, kKeys);
    task.o = part(all.task.o, t * kRows, kRows);
    task.seqlen_q = kRows;
    task.seqlen_k = kKeys;
    tasks.push_back(task);
  }
  ASSERT_EQ(runner_->Run(tasks), absl::OkStatus());
  for (int64_t i = 0; i < kTasks * kRows; ++i) {
    for (int64_t c = 0; c < kDim; ++c) {
      ASSERT_NEAR(all.O(i, 0, c), value(i / kRows, c), 0.5) << "task " << i / kRows;
    }
  }
}

TEST_P(Exact, MoreHeadsThanSixteenBitsCount) {
  constexpr int64_t kHeads = 66000;
  constexpr int64_t kDim = 8;
  Tensors tensors(dtype(), 1, 2, kHeads, kHeads, kDim, kDim);
  const auto value = [](int64_t head, int64_t c) {
    return static_cast<double>((head + 5 * c) % 251);
  };
  for (int64_t h = 0; h < kHeads; ++h) {
    for (int64_t c = 0; c < kDim; ++c) {
      Tensors::Set(tensors.task.v, 0, h, c, value(h, c));
      Tensors::Set(tensors.task.v, 1, h, c, value(h, c));
    }
  }
  Run(tensors);
  for (int64_t h = 0; h < kHeads; ++h) {
    for (int64_t c = 0; c < kDim; ++c) ASSERT_NEAR(tensors.O(0, h, c), value(h, c), 0.5) << h;
  }
}

// Rows far apart in reserved, mostly untouched memory: element offsets pass 2^31, byte offsets
// 2^32. The answer is that of the same rows side by side. A device would copy gigabytes, so there
// it runs only when $ATTEND_TEST_BIG is set.
TEST_P(Exact, OffsetsPastThirtyTwoBits) {
  const bool on_host = std::get<1>(GetParam()).find("cpu") != std::string::npos;
  if (!on_host && std::getenv("ATTEND_TEST_BIG") == nullptr) {
    GTEST_SKIP() << "copies gigabytes; set ATTEND_TEST_BIG to run it";
  }
  constexpr int64_t kStride = int64_t{1} << 27;  // elements
  constexpr int64_t kRows = 20, kDim = 64;
  Tensors near(dtype(), kRows, kRows, 1, 1, kDim, kDim);
  Random random(MixSeed(TestSeed(), "far"));
  for (const TensorView* view : {&near.task.q, &near.task.k, &near.task.v}) {
    for (int64_t i = 0; i < kRows * kDim; ++i) {
      StoreElement(view->data, dtype(), i, random.Normal());
    }
  }
  Run(near);

  AttentionTask task = near.task;
  const size_t bytes = static_cast<size_t>(((kRows - 1) * kStride + kDim) * ByteSize(dtype()));
  std::vector<void*> maps;
  for (TensorView* view : {&task.q, &task.k, &task.v, &task.o}) {
    void* map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) GTEST_SKIP() << "the host gives no " << bytes << " bytes of addresses";
    maps.push_back(map);
    for (int64_t i = 0; i < kRows * kDim; ++i) {
      const double value = LoadElement(view->data, dtype(), i);
      StoreElement(map, dtype(), i / kDim * kStride + i % kDim, value);
    }
    view->data = map;
    view->row_stride = kStride;
  }
  EXPECT_EQ(runner_->Run({&task, 1}), absl::OkStatus());
  for (int64_t i = 0; i < kRows * kDim; ++i) {
    EXPECT_EQ(LoadElement(task.o.data, dtype(), i / kDim * kStride + i % kDim),
              LoadElement(near.task.o.data, dtype(), i));
  }
  for (void* map : maps) munmap(map, bytes);
}

}  // namespace
}  // namespace attend::testing
