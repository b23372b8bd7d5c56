// The CPU backend behind a few C functions, so that a script can time it in turn with other
// implementations inside one process. Not installed.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "kernels/attention.h"
#include "kernels/backend.h"
#include "kernels/cpu/cpu_backend.h"
#include "tests/bench/cpu/peak.h"

namespace {

struct Bench {
  std::unique_ptr<attend::Backend> backend;
  std::unique_ptr<attend::Executor> executor;
  std::string architecture;
  std::string device;
};

attend::TensorView View(void* data, attend::DType dtype, int64_t rows, int64_t heads,
                        int64_t columns) {
  return attend::TensorView::Contiguous(data, dtype, attend::MemoryKind::kHost, rows, heads,
                                        columns);
}

}  // namespace

extern "C" {

// Null, with a line on stderr, when the backend cannot be made (see ATTEND_CPU_ISA).
void* attend_bench_make(int threads) {
  attend::BackendOptions options;
  options.threads = threads;
  auto backend = attend::MakeCpuBackend(options);
  if (!backend.ok()) {
    std::fprintf(stderr, "%s\n", backend.status().ToString().c_str());
    return nullptr;
  }
  auto bench = std::make_unique<Bench>();
  bench->backend = *std::move(backend);
  auto executor = bench->backend->MakeExecutor();
  if (!executor.ok()) return nullptr;
  bench->executor = *std::move(executor);
  bench->architecture = bench->backend->device().architecture;
  bench->device = bench->backend->device().name;
  return bench.release();
}

void attend_bench_free(void* bench) { delete static_cast<Bench*>(bench); }
const char* attend_bench_architecture(void* bench) {
  return static_cast<Bench*>(bench)->architecture.c_str();
}
const char* attend_bench_device(void* bench) { return static_cast<Bench*>(bench)->device.c_str(); }

// q [sq, hq, d], k and v [sk, hk, d], o [sq, hq, d], contiguous; dtype counts as attend::DType.
// 0 when all is well.
int attend_bench_run(void* bench, const void* q, const void* k, const void* v, void* o, float* lse,
                     int64_t sq, int64_t sk, int64_t hq, int64_t hk, int64_t d, float scale,
                     int causal, int dtype_index) {
  const auto dtype = static_cast<attend::DType>(dtype_index);
  attend::AttentionTask task;
  task.q = View(const_cast<void*>(q), dtype, sq, hq, d);
  task.k = View(const_cast<void*>(k), dtype, sk, hk, d);
  task.v = View(const_cast<void*>(v), dtype, sk, hk, d);
  task.o = View(o, dtype, sq, hq, d);
  task.lse.data = lse;
  task.lse.head_stride = sq;
  task.seqlen_q = sq;
  task.seqlen_k = sk;
  task.softmax_scale = scale;
  task.mask.causal = causal != 0;
  attend::BatchReport report;
  const absl::Status status =
      static_cast<Bench*>(bench)->executor->Run({absl::MakeConstSpan(&task, 1)}, &report);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}

// Best rate of the multiply-adds that `architecture` uses for the dtype, in FLOP/s.
double attend_bench_peak(const char* architecture, int dtype_index, int threads, double seconds) {
  return attend::bench::MeasurePeak(
      architecture, dtype_index == static_cast<int>(attend::DType::kBF16), threads, seconds);
}

}  // extern "C"
