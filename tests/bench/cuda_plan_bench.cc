// What a batch costs the host before its launch: placing tensors, cutting the work, descriptors.
// Needs no device.

#include <benchmark/benchmark.h>

#include <cmath>
#include <memory>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cuda/forward/sm80/sm80_family.h"
#include "kernels/cuda/pinned_memory.h"
#include "kernels/cuda/placement.h"

namespace attend::cuda {
namespace {

// `count` requests of 16 heads in one slab, in the server's order, with rows from 64 to 2048.
struct Requests {
  explicit Requests(int64_t count) {
    std::byte* at = nullptr;
    const auto take = [&at](int64_t bytes) {
      std::byte* const begin = at;
      at += (bytes + 255) / 256 * 256;
      return begin;
    };
    at = reinterpret_cast<std::byte*>(uintptr_t{1} << 40);  // never touched
    slab = {at, at};
    for (int64_t i = 0; i < count; ++i) {
      const int64_t rows = 64 << (i * 7 % 6);
      AttentionTask task;
      for (TensorView* view : {&task.q, &task.k, &task.v, &task.o}) {
        *view = TensorView::Contiguous(nullptr, DType::kBF16, MemoryKind::kPinned, rows, 16, 64);
        view->data = take(rows * 16 * 64 * 2);
      }
      task.lse = {reinterpret_cast<float*>(take(rows * 16 * 4)), MemoryKind::kPinned, rows};
      task.seqlen_q = task.seqlen_k = rows;
      task.softmax_scale = 0.125f;
      task.mask.causal = i % 2 == 0;
      tasks.push_back(task);
    }
    slab.end = at;
  }
  std::vector<AttentionTask> tasks;
  HostRange slab;
};

void BM_PlanBatchForTheDevice(benchmark::State& state) {
  const Requests requests(state.range(0));
  const std::unique_ptr<ForwardFamily> family = MakeSm80Family();
  const HostRanges slabs = {requests.slab};
  Placement placement;
  std::vector<DeviceTask> placed;
  std::vector<std::byte> upload(1 << 20);
  for (auto _ : state) {
    placement.Plan(requests.tasks, slabs);
    placement.Resolve(requests.tasks, nullptr, &placed);
    const LaunchSize size = family->Measure(requests.tasks);
    if (size.upload_bytes > upload.size()) state.SkipWithError("the plan outgrew its buffer");
    family->Fill(requests.tasks, placed, upload.data(), upload.data(), nullptr);
    benchmark::DoNotOptimize(upload.data());
  }
  state.counters["per_request"] = benchmark::Counter(
      static_cast<double>(state.range(0)),
      benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}
BENCHMARK(BM_PlanBatchForTheDevice)->Arg(1)->Arg(16)->Arg(256)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace attend::cuda
