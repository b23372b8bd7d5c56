// Promises beside precision, on every backend: the same bits whoever shares the batch and whatever
// lies in hidden places, every option having an effect, and counts and offsets past 16 and 32 bits.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/reference/number_formats.h"
#include "tests/kernels/exact_fixture.h"
#include "tests/testing/case_table.h"
#include "tests/testing/problem.h"
#include "tests/testing/random.h"

namespace attend::testing {
namespace {

using reference::LoadElement;
using reference::StoreElement;

class Limits : public OnExactBackend {};
ATTEND_INSTANTIATE_EXACT(Limits);

// Padding and masked keys hold NaN in one run and ordinary numbers in the other.
TEST_P(Limits, HiddenBitsChangeNothing) {
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

TEST_P(Limits, SameBitsWhoeverSharesTheBatch) {
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

TEST_P(Limits, EveryOptionHasAnEffect) {
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
TEST_P(Limits, MoreTasksThanSixteenBitsCount) {
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

TEST_P(Limits, MoreHeadsThanSixteenBitsCount) {
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
TEST_P(Limits, OffsetsPastThirtyTwoBits) {
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
