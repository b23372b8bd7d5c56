// How a batch that does not run through is cut, and who pays for it.

#include "server/engine/batch_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <new>
#include <set>
#include <stdexcept>
#include <vector>

#include "kernels/errors.h"
#include "server/engine/reasons.h"
#include "tests/server/engine/engine_test_util.h"
#include "tests/testing/random.h"

namespace attend {
namespace {

using testing::CountingObserver;
using testing::FakeDevice;
using testing::IdOf;
using testing::MakeFakeBackend;
using testing::MixSeed;
using testing::Random;
using testing::TestSeed;
using testing::TestTensors;

// An executor that answers by a function of the tasks' numbers.
class ScriptedExecutor final : public Executor {
 public:
  using Script = std::function<absl::Status(const std::vector<int>&)>;
  explicit ScriptedExecutor(Script script) : script_(std::move(script)) {}

  absl::Status Run(const AttentionBatch& batch, BatchReport* report) override {
    std::vector<int> ids;
    for (const AttentionTask& task : batch.tasks) ids.push_back(static_cast<int>(IdOf(task)));
    report->bytes_in = static_cast<int64_t>(ids.size());
    return script_(ids);
  }

 private:
  const Script script_;
};

class BatchRunnerTest : public ::testing::Test {
 protected:
  // Runs tasks 0, 1, ... of `owners`; remembers the answers by task and the runs.
  void Run(const std::vector<uint64_t>& owners, ScriptedExecutor::Script script) {
    answers_.clear();
    runs_.clear();
    auto executor = std::make_unique<ScriptedExecutor>([&, script](const std::vector<int>& ids) {
      runs_.push_back(ids);
      return script(ids);
    });
    BatchRunner runner(backend_.get(), std::move(executor), &observer_);
    std::vector<TestTensors> tensors;
    std::vector<AttentionTask> tasks;
    for (size_t i = 0; i < owners.size(); ++i) tensors.emplace_back(static_cast<float>(i), 1, 1);
    for (const TestTensors& owned : tensors) tasks.push_back(owned.tasks()[0]);
    runner.Run(tasks, owners, [&](RunResult result) {
      EXPECT_EQ(result.begin, answers_.size()) << "in order, each once";
      EXPECT_LT(result.begin, result.end);
      for (size_t i = result.begin; i < result.end; ++i) answers_.push_back(result.status);
    });
    EXPECT_EQ(answers_.size(), owners.size());
    EXPECT_LE(runs_.size(), 2 * owners.size());
  }

  std::vector<absl::StatusCode> Codes() const {
    std::vector<absl::StatusCode> codes;
    for (const absl::Status& answer : answers_) codes.push_back(answer.code());
    return codes;
  }

  std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  std::unique_ptr<Backend> backend_ = MakeFakeBackend(device_);
  CountingObserver observer_;
  std::vector<absl::Status> answers_;
  std::vector<std::vector<int>> runs_;
};

constexpr auto kOk = absl::StatusCode::kOk;
constexpr auto kInternal = absl::StatusCode::kInternal;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

bool Has(const std::vector<int>& ids, int id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

TEST_F(BatchRunnerTest, OneRunWhenAllIsWell) {
  Run({1, 1, 2}, [](const auto&) { return absl::OkStatus(); });
  EXPECT_EQ(runs_.size(), 1u);
  EXPECT_THAT(Codes(), ::testing::Each(kOk));
}

TEST_F(BatchRunnerTest, OutOfMemoryHalvesUntilItFits) {
  Run({1, 1, 1, 1, 2, 2, 3, 4}, [](const std::vector<int>& ids) {
    return ids.size() > 2 ? absl::ResourceExhaustedError("small") : absl::OkStatus();
  });
  EXPECT_THAT(Codes(), ::testing::Each(kOk));
  EXPECT_EQ(runs_[1].size(), 4u) << "cut between requests where that is the middle";
  EXPECT_EQ(observer_.Of("device"), 3);
}

TEST_F(BatchRunnerTest, ATaskThatCannotFitFailsItsRequestAlone) {
  Run({1, 2, 2, 3}, [](const std::vector<int>& ids) {
    return Has(ids, 1) ? absl::ResourceExhaustedError("huge") : absl::OkStatus();
  });
  EXPECT_EQ(Codes(), (std::vector{kOk, kExhausted, kExhausted, kOk}));
  EXPECT_EQ(ReasonOf(answers_[1]), std::string(kReasonDeviceMemory));
  for (const auto& run : runs_) EXPECT_NE(run, std::vector{2}) << "of no use any more";
}

TEST_F(BatchRunnerTest, AFailureHarmsOnlyItsOwnRequest) {
  Run({1, 2, 2, 3, 4}, [](const std::vector<int>& ids) {
    return Has(ids, 2) ? absl::InternalError("bad") : absl::OkStatus();
  });
  EXPECT_EQ(Codes(), (std::vector{kOk, kInternal, kInternal, kOk, kOk}));
  EXPECT_EQ(ReasonOf(answers_[1]), std::string(kReasonKernelFailed));
  EXPECT_THAT(std::string(answers_[1].message()), ::testing::HasSubstr("bad"));
}

TEST_F(BatchRunnerTest, ALoneRequestIsNotTriedTwice) {
  Run({1, 1, 1}, [](const auto&) { return absl::InternalError("bad"); });
  EXPECT_EQ(runs_.size(), 1u);
  EXPECT_THAT(Codes(), ::testing::Each(kInternal));
}

TEST_F(BatchRunnerTest, EveryCodeOfAnExecutorBecomesInternalButForMemory) {
  Run({1}, [](const auto&) { return absl::UnavailableError("gone"); });
  EXPECT_THAT(Codes(), ::testing::Each(kInternal));
  Run({1}, [](const auto&) { return absl::OutOfRangeError("odd"); });
  EXPECT_THAT(Codes(), ::testing::Each(kInternal));
}

TEST_F(BatchRunnerTest, ASickDeviceIsNotAskedAgain) {
  Run({1, 2, 3, 4}, [&](const std::vector<int>& ids) {
    if (ids.size() > 2) return absl::InternalError("first");
    if (Has(ids, 0)) return absl::OkStatus();
    device_->SetHealth(absl::UnavailableError("dead"));
    return absl::InternalError("dead");
  });
  EXPECT_EQ(Codes(), (std::vector{kOk, kOk, kInternal, kInternal}));
  EXPECT_EQ(runs_.size(), 3u);
}

TEST_F(BatchRunnerTest, ExceptionsAreAnswers) {
  Run({1, 2}, [](const std::vector<int>& ids) -> absl::Status {
    if (Has(ids, 0)) throw std::bad_alloc();
    throw std::runtime_error("thrown");
  });
  EXPECT_EQ(Codes(), (std::vector{kExhausted, kInternal}));
  EXPECT_THAT(std::string(answers_[1].message()), ::testing::HasSubstr("thrown"));
}

// Bad tasks of both kinds anywhere: exactly their requests fail, in few runs.
TEST_F(BatchRunnerTest, AnyMixOfFaultsFailsExactlyTheFaulty) {
  Random random(MixSeed(TestSeed(), "batch runner"));
  for (int round = 0; round < 300; ++round) {
    std::vector<uint64_t> owners;
    uint64_t owner = 1;
    const int64_t count = random.Between(1, 40);
    for (int64_t i = 0; i < count; ++i) {
      if (random.Chance(0.5)) ++owner;
      owners.push_back(owner);
    }
    std::map<int, bool> faults;  // task to "out of memory"
    std::set<uint64_t> faulty;
    const double share = random.Uniform() * random.Uniform();
    for (int64_t i = 0; i < count; ++i) {
      if (!random.Chance(share)) continue;
      faults[static_cast<int>(i)] = random.Chance(0.5);
      faulty.insert(owners[static_cast<size_t>(i)]);
    }
    const size_t most = static_cast<size_t>(random.Between(1, 40));
    Run(owners, [&](const std::vector<int>& ids) {
      if (ids.size() > most) return absl::ResourceExhaustedError("too many");
      for (const int id : ids) {
        const auto fault = faults.find(id);
        if (fault == faults.end()) continue;
        return fault->second ? absl::ResourceExhaustedError("huge") : absl::InternalError("bad");
      }
      return absl::OkStatus();
    });
    for (size_t i = 0; i < owners.size(); ++i) {
      if (faulty.count(owners[i]) == 0) {
        EXPECT_EQ(Codes()[i], kOk) << i;
      } else if (faults.count(static_cast<int>(i)) != 0) {
        EXPECT_NE(Codes()[i], kOk) << i;
      }
    }
  }
}

}  // namespace
}  // namespace attend
