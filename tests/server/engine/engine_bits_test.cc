// Same bits whoever shares the batch: the engine over every real backend that answers on this
// host. A request is computed alone, then in crowds, split over batches, beside requests full of
// NaN; the bytes of its outputs must never change.

#include <gtest/gtest.h>

#include <bit>
#include <cctype>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "server/engine/engine.h"
#include "tests/server/engine/engine_test_util.h"
#include "tests/testing/random.h"

namespace attend {
namespace {

using testing::DoneLog;
using testing::MixSeed;
using testing::Random;
using testing::TestSeed;

constexpr int kRequests = 24;

// One fp32 request of `sequences` tasks, with inputs from `seed`, outputs poisoned before each run.
class Problem {
 public:
  Problem(uint64_t seed, bool poisoned) {
    Random random(seed);
    heads_k_ = random.Between(1, 3);
    heads_q_ = heads_k_ * random.Between(1, 3);
    dim_ = random.Chance(0.5) ? 64 : random.Between(1, 130);
    causal_ = random.Chance(0.5);
    const int64_t sequences = random.Chance(0.6) ? 1 : random.Between(2, 5);
    for (int64_t s = 0; s < sequences; ++s) {
      rows_q_.push_back(random.Chance(0.3) ? 1 : random.Between(1, 150));
      rows_k_.push_back(random.Between(1, random.Chance(0.2) ? 900 : 200));
      const auto fill = [&](int64_t rows, int64_t heads) {
        std::vector<float> values(static_cast<size_t>(rows * heads * dim_));
        for (float& value : values) {
          value = poisoned ? std::numeric_limits<float>::quiet_NaN()
                           : static_cast<float>(random.Normal());
        }
        inputs_.push_back(std::move(values));
      };
      fill(rows_q_.back(), heads_q_);
      fill(rows_k_.back(), heads_k_);
      fill(rows_k_.back(), heads_k_);
      outputs_.emplace_back(static_cast<size_t>(rows_q_.back() * heads_q_ * dim_));
      lse_.emplace_back(static_cast<size_t>(rows_q_.back() * heads_q_));
    }
  }

  std::vector<AttentionTask> Tasks() {
    std::vector<AttentionTask> tasks;
    for (size_t s = 0; s < rows_q_.size(); ++s) {
      for (std::vector<float>* output : {&outputs_[s], &lse_[s]}) {
        std::fill(output->begin(), output->end(), std::numeric_limits<float>::quiet_NaN());
      }
      const auto view = [&](std::vector<float>* values, int64_t rows, int64_t heads) {
        return TensorView::Contiguous(values->data(), DType::kF32, MemoryKind::kHost, rows, heads,
                                      dim_);
      };
      AttentionTask task;
      task.q = view(&inputs_[3 * s], rows_q_[s], heads_q_);
      task.k = view(&inputs_[3 * s + 1], rows_k_[s], heads_k_);
      task.v = view(&inputs_[3 * s + 2], rows_k_[s], heads_k_);
      task.o = view(&outputs_[s], rows_q_[s], heads_q_);
      task.lse = {lse_[s].data(), MemoryKind::kHost, rows_q_[s]};
      task.seqlen_q = rows_q_[s];
      task.seqlen_k = rows_k_[s];
      task.softmax_scale = 1.0f / std::sqrt(static_cast<float>(dim_));
      task.mask.causal = causal_;
      tasks.push_back(task);
    }
    return tasks;
  }

  // The outputs' bits.
  std::vector<uint32_t> Bits() const {
    std::vector<uint32_t> bits;
    for (const auto* outputs : {&outputs_, &lse_}) {
      for (const std::vector<float>& output : *outputs) {
        for (const float value : output) bits.push_back(std::bit_cast<uint32_t>(value));
      }
    }
    return bits;
  }
  bool AnyNaN() const {
    for (const std::vector<float>& output : outputs_) {
      for (const float value : output) {
        if (std::isnan(value)) return true;
      }
    }
    return false;
  }

 private:
  int64_t heads_q_ = 0, heads_k_ = 0, dim_ = 0;
  bool causal_ = false;
  std::vector<int64_t> rows_q_, rows_k_;
  std::vector<std::vector<float>> inputs_, outputs_, lse_;
};

class EngineBitsTest : public ::testing::TestWithParam<std::string> {
 protected:
  // Computes `problems` with `engine`, all at once or one after another.
  static void Run(Engine* engine, std::vector<Problem>* problems, bool together) {
    DoneLog log;
    for (size_t i = 0; i < problems->size(); ++i) {
      Request request;
      request.tasks = (*problems)[i].Tasks();
      request.done = log.For(static_cast<int>(i));
      engine->Submit(std::move(request));
      if (!together) log.AwaitCount(i + 1);
    }
    log.AwaitCount(problems->size());
    for (size_t i = 0; i < problems->size(); ++i) {
      ASSERT_TRUE(log.Await(static_cast<int>(i)).status.ok())
          << log.Await(static_cast<int>(i)).status;
    }
  }
};

TEST_P(EngineBitsTest, CompanyChangesNothing) {
  const uint64_t seed = MixSeed(TestSeed(), "engine bits");
  std::vector<Problem> problems;
  for (int i = 0; i < kRequests; ++i) {
    problems.emplace_back(seed + static_cast<uint64_t>(i), i % 4 == 3);
  }
  EngineOptions options;
  options.staging_initial_bytes = 0;
  options.batch_delay = std::chrono::milliseconds(20);  // so that batches are full
  std::vector<std::vector<uint32_t>> alone;
  {
    EngineOptions lone = options;
    lone.batch_delay = std::chrono::microseconds(0);
    auto engine = Engine::Create(MakeBackend(GetParam(), {}).value(), lone, nullptr).value();
    Run(engine.get(), &problems, false);
    for (size_t i = 0; i < problems.size(); ++i) {
      alone.push_back(problems[i].Bits());
      EXPECT_EQ(problems[i].AnyNaN(), i % 4 == 3) << "only poison gives NaN, request " << i;
    }
  }
  for (const int64_t most : {1, 3, 7, 256}) {
    for (const int workers : {1, 2}) {
      options.max_batch_tasks = most;
      options.workers = workers;
      auto engine = Engine::Create(MakeBackend(GetParam(), {}).value(), options, nullptr).value();
      Run(engine.get(), &problems, true);
      for (size_t i = 0; i < problems.size(); ++i) {
        if (i % 4 == 3) continue;  // which NaN comes out is not promised
        EXPECT_TRUE(problems[i].Bits() == alone[i])
            << "request " << i << ", batches of " << most << ", workers " << workers;
      }
    }
  }
}

std::vector<std::string> BackendsHere() {
  std::vector<std::string> names;
  for (const BackendEntry& entry : BackendRegistry()) {
    if (entry.device_count() > 0) names.emplace_back(entry.name);
  }
  return names;
}

std::string TestName(const ::testing::TestParamInfo<std::string>& backend) {
  std::string name = backend.param;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Backends, EngineBitsTest, ::testing::ValuesIn(BackendsHere()), TestName);

}  // namespace
}  // namespace attend
