// What a request costs the host, kernels and copies apart: costing, queueing, batching, planning,
// and the way from Submit to `done` through all threads.
//
// The aim is at most 5 us a request for costing + batching + planning of 256 tasks of 16 heads.

#include <benchmark/benchmark.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/attention.h"
#include "kernels/host_staging.h"
#include "kernels/plan.h"
#include "server/engine/batcher.h"
#include "server/engine/engine.h"
#include "server/engine/task_cost.h"

namespace attend {
namespace {

constexpr int kTasks = 256;
constexpr int64_t kHeads = 16;
constexpr int64_t kHeadDim = 128;

// A rule like that of a GPU kernel; its numbers matter little here.
constexpr PlanRule kRule = {128, 64, 16, 132, 512};

class NullExecutor final : public Executor {
 public:
  absl::Status Run(const AttentionBatch&, BatchReport*) override { return absl::OkStatus(); }
};

// Answers everything at once.
class NullBackend final : public Backend {
 public:
  std::string_view name() const override { return "null"; }
  DeviceInfo device() const override { return {0, "null", "null"}; }
  FeatureSet Features() const override { return kAllFeatures; }
  absl::Status Supports(const AttentionTask&) const override { return absl::OkStatus(); }
  KernelClass Classify(const AttentionTask& task) const override {
    return {static_cast<uint64_t>(task.dtype())};
  }
  int PreferredExecutors() const override { return 1; }
  absl::StatusOr<std::unique_ptr<Executor>> MakeExecutor() override {
    return std::make_unique<NullExecutor>();
  }
  absl::StatusOr<std::unique_ptr<Staging>> AllocateStaging(size_t bytes) override {
    return MakeHostStaging(bytes);
  }
  int64_t DeviceBytes(const AttentionTask&) const override { return 0; }
  DeviceMemoryStats MemoryStats() const override { return {}; }
  absl::Status Healthy() const override { return absl::OkStatus(); }
  std::vector<std::string_view> KernelNames() const override { return {}; }
};

// 64 to 2048 rows, causal or not. Nothing reads the memory.
AttentionTask MakeTask(int index) {
  static char memory;
  const int64_t rows = 64 << (index % 6);
  AttentionTask task;
  task.q =
      TensorView::Contiguous(&memory, DType::kF16, MemoryKind::kPinned, rows, kHeads, kHeadDim);
  task.k = task.v = task.o = task.q;
  task.seqlen_q = rows - index % 7;
  task.seqlen_k = rows;
  task.mask.causal = index % 2 == 0;
  return task;
}

std::vector<AttentionTask> MakeTasks() {
  std::vector<AttentionTask> tasks;
  for (int i = 0; i < kTasks; ++i) tasks.push_back(MakeTask(i));
  return tasks;
}

// Every request of a full batch: costed, queued, taken, planned.
void BM_PlanAndBatch(benchmark::State& state) {
  const int tasks_each = static_cast<int>(state.range(0));
  const int requests = kTasks / tasks_each;
  const std::vector<AttentionTask> tasks = MakeTasks();
  const NullBackend backend;
  EngineOptions options;
  options.max_batch_flops = 1e18;
  options.max_batch_bytes = int64_t{1} << 40;
  Batcher batcher(options);
  Batch batch;
  BatchPlan plan;
  std::vector<AttentionTask> batch_tasks;
  uint64_t sequence = 0;
  Clock::time_point now = Clock::now();
  for (auto _ : state) {
    const uint64_t first = sequence + 1;
    for (int r = 0; r < requests; ++r) {
      BatcherRequest request;
      request.sequence = ++sequence;
      request.deadline = now + std::chrono::milliseconds(100 + r % 10);
      request.tasks.reserve(static_cast<size_t>(tasks_each));
      for (int t = 0; t < tasks_each; ++t) {
        request.tasks.push_back(CostOf(tasks[static_cast<size_t>(r * tasks_each + t)], backend));
      }
      batcher.Add(std::move(request), now);
    }
    std::vector<uint64_t> expired;
    batcher.Expire(now, &expired);
    batcher.Take(now, &batch);
    batch_tasks.clear();
    for (const TaskRef& ref : batch.tasks) {
      const size_t index =
          static_cast<size_t>(ref.sequence - first) * static_cast<size_t>(tasks_each) +
          static_cast<size_t>(ref.index);
      batch_tasks.push_back(tasks[index]);
    }
    if (batch_tasks.size() != kTasks) state.SkipWithError("the batch is not full");
    PlanBatch(batch_tasks, kRule, &plan);
    benchmark::DoNotOptimize(plan.items());
    now += std::chrono::microseconds(100);
  }
  state.SetItemsProcessed(state.iterations() * requests);
  state.counters["time_per_request"] = benchmark::Counter(
      static_cast<double>(requests),
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_PlanAndBatch)->ArgName("tasks_each")->Arg(1)->Arg(16)->Arg(256);

// Add and Remove with `queued` others waiting: O(log n).
void BM_AddRemove(benchmark::State& state) {
  EngineOptions options;
  options.max_in_flight_requests = 1 << 20;
  Batcher batcher(options);
  Clock::time_point now = Clock::now();
  uint64_t sequence = 0;
  const auto add = [&] {
    BatcherRequest request;
    request.sequence = ++sequence;
    request.deadline = now + std::chrono::microseconds(sequence * 7919 % 100000);
    request.tasks.push_back({KernelClass{sequence % 3}, 1.0, 1});
    batcher.Add(std::move(request), now);
  };
  for (int64_t i = 0; i < state.range(0); ++i) add();
  for (auto _ : state) {
    add();
    batcher.Remove(sequence);
  }
}
BENCHMARK(BM_AddRemove)->ArgName("queued")->Range(1, 1 << 16);

// From Submit to `done`, `in_flight` requests at a time, through worker and completion threads.
void BM_SubmitToDone(benchmark::State& state) {
  EngineOptions options;
  options.staging_initial_bytes = 0;
  auto engine = Engine::Create(std::make_unique<NullBackend>(), options, nullptr).value();
  const int64_t in_flight = state.range(0);
  std::mutex mutex;
  std::condition_variable changed;
  int64_t done = 0;
  for (auto _ : state) {
    done = 0;
    for (int64_t i = 0; i < in_flight; ++i) {
      Request request;
      request.tasks.push_back(MakeTask(static_cast<int>(i)));
      request.done = [&](const absl::Status&, const RequestReport&) {
        const std::lock_guard lock(mutex);
        if (++done == in_flight) changed.notify_one();
      };
      engine->Submit(std::move(request));
    }
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done == in_flight; });
  }
  state.SetItemsProcessed(state.iterations() * in_flight);
}
BENCHMARK(BM_SubmitToDone)->ArgName("in_flight")->Arg(1)->Arg(64)->Arg(1024)->UseRealTime();

// A place and staging of `bytes`, taken and given back.
void BM_Admit(benchmark::State& state) {
  auto engine = Engine::Create(std::make_unique<NullBackend>(), {}, nullptr).value();
  const AdmissionRequest request{"client", static_cast<size_t>(state.range(0)), 1e9};
  for (auto _ : state) benchmark::DoNotOptimize(engine->Admit(request));
}
BENCHMARK(BM_Admit)->ArgName("bytes")->Arg(4096)->Arg(16 << 20);

}  // namespace
}  // namespace attend
