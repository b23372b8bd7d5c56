// What the CUDA backend promises beside its mathematics: errors, memory, time base, staging, the
// same bits on every stream. The mathematics are the conformance test's. Most tests need a device.

#include "kernels/cuda/cuda_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/device_clock.h"
#include "tests/testing/random.h"

namespace attend {
namespace {

using ::attend::testing::MixSeed;
using ::attend::testing::Random;
using ::attend::testing::TestSeed;
using ::testing::HasSubstr;

// Makes the backend, or skips the test where there is no device.
#define MAKE_BACKEND_OR_SKIP(backend, options)                                          \
  if (CudaDeviceCount() == 0) GTEST_SKIP() << "no CUDA device answers on this machine"; \
  absl::StatusOr<std::unique_ptr<Backend>> backend##_or = MakeCudaBackend(options);     \
  ASSERT_TRUE(backend##_or.ok()) << backend##_or.status();                              \
  Backend& backend = **backend##_or

constexpr uint16_t kOneHalf = 0x3c00;  // 1.0 in fp16

// Requests of fp16 tensors in one staging slab, in the server's order: q | k | v | o | lse.
class StagedRequests {
 public:
  StagedRequests(Backend& backend, int count, int64_t rows, int64_t heads, int64_t dim)
      : rows_(rows), heads_(heads), dim_(dim) {
    const size_t tensor = Round(static_cast<size_t>(rows * heads * dim) * 2);
    const size_t lse = Round(static_cast<size_t>(rows * heads) * 4);
    request_bytes_ = 4 * tensor + lse + kCanary;
    staging_ = backend.AllocateStaging(request_bytes_ * static_cast<size_t>(count)).value();
    Random random(MixSeed(TestSeed(), "staged"));
    for (int i = 0; i < count; ++i) {
      std::byte* at = staging_->data() + request_bytes_ * static_cast<size_t>(i);
      std::memset(at, kCanaryByte, request_bytes_);
      AttentionTask task;
      for (TensorView* view : {&task.q, &task.k, &task.v, &task.o}) {
        *view = TensorView::Contiguous(at, DType::kF16, MemoryKind::kPinned, rows, heads, dim);
        at += tensor;
      }
      task.lse = {reinterpret_cast<float*>(at), MemoryKind::kPinned, rows};
      task.seqlen_q = task.seqlen_k = rows;
      task.softmax_scale = 1.0f / std::sqrt(static_cast<float>(dim));
      for (const TensorView* view : {&task.q, &task.k, &task.v}) {
        uint16_t* const data = static_cast<uint16_t*>(view->data);
        // Signed values around 1: sign, exponent of 0.5 or 1, random mantissa.
        for (int64_t j = 0; j < rows * heads * dim; ++j) {
          data[j] = static_cast<uint16_t>((random.Next() & 0x87ff) | 0x3800);
        }
      }
      tasks_.push_back(task);
    }
  }

  const std::vector<AttentionTask>& tasks() const { return tasks_; }
  Staging& staging() { return *staging_; }

  std::vector<uint16_t> Output(size_t i) const {
    const uint16_t* const o = static_cast<const uint16_t*>(tasks_[i].o.data);
    return std::vector<uint16_t>(o, o + rows_ * heads_ * dim_);
  }
  bool CanariesLive() const {
    for (const AttentionTask& task : tasks_) {
      const std::byte* const end = reinterpret_cast<const std::byte*>(task.lse.data) +
                                   Round(static_cast<size_t>(rows_ * heads_) * 4);
      for (size_t i = 0; i < kCanary; ++i) {
        if (end[i] != static_cast<std::byte>(kCanaryByte)) return false;
      }
    }
    return true;
  }

 private:
  static constexpr size_t kCanary = 256;
  static constexpr int kCanaryByte = 0xff;  // NaN in every dtype
  static size_t Round(size_t bytes) { return (bytes + 255) / 256 * 256; }

  const int64_t rows_, heads_, dim_;
  size_t request_bytes_ = 0;
  std::unique_ptr<Staging> staging_;
  std::vector<AttentionTask> tasks_;
};

TEST(CudaStatusTest, CodesTellWhatACallerMayDo) {
  EXPECT_TRUE(cuda::ToStatus(cudaSuccess, "x").ok());
  EXPECT_EQ(cuda::ToStatus(cudaErrorMemoryAllocation, "x").code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(cuda::ToStatus(cudaErrorNoDevice, "x").code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(cuda::ToStatus(cudaErrorInsufficientDriver, "x").code(),
            absl::StatusCode::kUnavailable);
  const absl::Status fault = cuda::ToStatus(cudaErrorIllegalAddress, "batch");
  EXPECT_EQ(fault.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(fault.message()), HasSubstr("batch: cudaErrorIllegalAddress"));
}

TEST(CudaStatusTest, AStickyErrorMakesTheDeviceUnavailableForGood) {
  cuda::DeviceHealth health;
  EXPECT_EQ(health.Check(cudaErrorMemoryAllocation, "x").code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(health.Check(cudaErrorInvalidValue, "x").code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(health.Get().ok());
  EXPECT_EQ(health.Check(cudaErrorIllegalAddress, "batch").code(), absl::StatusCode::kInternal);
  EXPECT_EQ(health.Get().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(health.Check(cudaSuccess, "x").ok());
  EXPECT_EQ(health.Get().code(), absl::StatusCode::kUnavailable);
}

TEST(DeviceClockTest, TrustsEventsWhileTheirFloatIsFine) {
  EXPECT_DOUBLE_EQ(cuda::NextAnchorSeconds(100.0, 5.0, 5.5), 105.0);
  EXPECT_DOUBLE_EQ(cuda::NextAnchorSeconds(100.0, 7000.5, 7000.0), 7100.0);
}

TEST(CudaBackendTest, WithoutADeviceItSaysSo) {
  if (CudaDeviceCount() > 0) GTEST_SKIP() << "this machine has a device";
  EXPECT_EQ(MakeCudaBackend({}).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(MakePortableCudaBackend({}).status().code(), absl::StatusCode::kUnavailable);
}

TEST(CudaBackendTest, AMissingOrdinalIsUnavailable) {
  BackendOptions options;
  options.device = 1000;
  const absl::Status status = MakeCudaBackend(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
}

TEST(CudaBackendTest, StagingIsPinnedAndAligned) {
  MAKE_BACKEND_OR_SKIP(backend, {});
  const auto staging = backend.AllocateStaging(1000).value();
  EXPECT_EQ(staging->memory_kind(), MemoryKind::kPinned);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(staging->data()) % 256, 0u);
  EXPECT_GE(staging->size(), 1000u);
  std::memset(staging->data(), 1, staging->size());
}

TEST(CudaBackendTest, ARequestReturnsInPlaceAndTouchesNothingElse) {
  MAKE_BACKEND_OR_SKIP(backend, {});
  StagedRequests requests(backend, 5, 100, 3, 64);
  const auto executor = backend.MakeExecutor().value();
  BatchReport report;
  ASSERT_EQ(executor->Run({requests.tasks()}, &report), absl::OkStatus());
  EXPECT_TRUE(requests.CanariesLive());
  for (size_t i = 0; i < requests.tasks().size(); ++i) {
    for (const uint16_t bits : requests.Output(i)) ASSERT_NE(bits & 0x7c00, 0x7c00);  // finite
  }
  EXPECT_GT(report.bytes_in, 5 * 3 * 100 * 3 * 64 * 2 - 1);
  EXPECT_EQ(report.bytes_out, 5 * (100 * 3 * 64 * 2 + 100 * 3 * 4));
  const std::vector<std::string_view> names = backend.KernelNames();
  ASSERT_FALSE(report.launches.empty());
  for (const KernelLaunches& launch : report.launches) {
    EXPECT_THAT(names, ::testing::Contains(launch.kernel));
    EXPECT_GT(launch.launches, 0);
  }
}

TEST(CudaBackendTest, StagesFollowOneAnotherOnOneTimeBase) {
  MAKE_BACKEND_OR_SKIP(backend, {});
  StagedRequests requests(backend, 4, 256, 4, 64);
  const auto a = backend.MakeExecutor().value();
  const auto b = backend.MakeExecutor().value();
  double last_end = 0;
  for (int i = 0; i < 6; ++i) {
    BatchReport report;
    ASSERT_EQ((i % 2 == 0 ? a : b)->Run({requests.tasks()}, &report), absl::OkStatus());
    // Batches that follow one another, on whichever stream, do not overlap.
    EXPECT_GT(report.copy_in.begin_seconds, last_end - 2e-6);
    EXPECT_GT(report.copy_in.seconds(), 0);
    EXPECT_GE(report.kernel.begin_seconds, report.copy_in.end_seconds);
    EXPECT_GT(report.kernel.seconds(), 0);
    EXPECT_GE(report.copy_out.begin_seconds, report.kernel.end_seconds);
    EXPECT_GT(report.copy_out.seconds(), 0);
    last_end = report.copy_out.end_seconds;
  }
}

TEST(CudaBackendTest, AWarmExecutorReservesNothingMore) {
  MAKE_BACKEND_OR_SKIP(backend, {});
  StagedRequests requests(backend, 8, 128, 4, 64);
  const auto executor = backend.MakeExecutor().value();
  BatchReport report;
  ASSERT_EQ(executor->Run({requests.tasks()}, &report), absl::OkStatus());
  const DeviceMemoryStats warm = backend.MemoryStats();
  EXPECT_EQ(warm.used, 0);
  EXPECT_GT(warm.reserved, 0);
  EXPECT_GT(warm.peak, 0);
  EXPECT_LE(warm.peak, warm.reserved);
  EXPECT_GT(warm.total, warm.free);
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(executor->Run({requests.tasks()}, &report), absl::OkStatus());
  }
  EXPECT_EQ(backend.MemoryStats().reserved, warm.reserved);
  // What DeviceBytes promises for one task is enough for it.
  const int64_t one = backend.DeviceBytes(requests.tasks()[0]);
  EXPECT_GT(one, 4 * 128 * 4 * 64 * 2);
  EXPECT_LE(warm.peak, 8 * one);
}

TEST(CudaBackendTest, ABatchAboveTheLimitIsRefusedAndASmallerOnePasses) {
  BackendOptions options;
  options.device_memory_limit = int64_t{2} << 20;
  MAKE_BACKEND_OR_SKIP(backend, options);
  StagedRequests requests(backend, 8, 256, 4, 64);
  const auto executor = backend.MakeExecutor().value();
  BatchReport report;
  const absl::Status status = executor->Run({requests.tasks()}, &report);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_TRUE(backend.Healthy().ok());
  EXPECT_EQ(backend.MemoryStats().used, 0);
  const absl::Span<const AttentionTask> all = requests.tasks();
  ASSERT_EQ(executor->Run({all.subspan(0, 1)}, &report), absl::OkStatus());
  EXPECT_LE(backend.MemoryStats().reserved, options.device_memory_limit);
  EXPECT_EQ(backend.MemoryStats().limit, options.device_memory_limit);
}

TEST(CudaBackendTest, ExecutorsInParallelGiveTheSameBitsAsOneAlone) {
  MAKE_BACKEND_OR_SKIP(backend, {});
  constexpr int kRequests = 12;
  StagedRequests requests(backend, kRequests, 300, 4, 128);
  const absl::Span<const AttentionTask> tasks = requests.tasks();
  std::vector<std::vector<uint16_t>> alone;
  {
    const auto executor = backend.MakeExecutor().value();
    for (size_t i = 0; i < tasks.size(); ++i) {
      BatchReport report;
      ASSERT_EQ(executor->Run({tasks.subspan(i, 1)}, &report), absl::OkStatus());
      alone.push_back(requests.Output(i));
      std::memset(tasks[i].o.data, 0xff, alone.back().size() * 2);
    }
  }
  std::vector<std::future<absl::Status>> workers;
  for (size_t worker = 0; worker < 3; ++worker) {
    workers.push_back(std::async(std::launch::async, [&backend, tasks, worker] {
      const auto executor = backend.MakeExecutor().value();
      BatchReport report;
      absl::Status status;
      for (int repeat = 0; repeat < 3 && status.ok(); ++repeat) {
        status = executor->Run({tasks.subspan(worker * 4, 4)}, &report);
      }
      return status;
    }));
  }
  for (std::future<absl::Status>& worker : workers) EXPECT_EQ(worker.get(), absl::OkStatus());
  for (size_t i = 0; i < tasks.size(); ++i) EXPECT_EQ(requests.Output(i), alone[i]) << i;
}

TEST(CudaBackendTest, EqualKeysAverageTheValues) {
  // Scores all alike: every output is the plain mean, here 1, to the last bit.
  MAKE_BACKEND_OR_SKIP(backend, {});
  StagedRequests requests(backend, 1, 257, 2, 64);
  const AttentionTask& task = requests.tasks()[0];
  uint16_t* const v = static_cast<uint16_t*>(task.v.data);
  std::fill(v, v + 257 * 2 * 64, kOneHalf);
  std::memset(task.q.data, 0, 257 * 2 * 64 * 2);
  const auto executor = backend.MakeExecutor().value();
  BatchReport report;
  ASSERT_EQ(executor->Run({requests.tasks()}, &report), absl::OkStatus());
  for (const uint16_t bits : requests.Output(0)) ASSERT_EQ(bits, kOneHalf);
  for (int i = 0; i < 2 * 257; ++i) EXPECT_NEAR(task.lse.data[i], std::log(257.0f), 1e-5);
}

}  // namespace
}  // namespace attend
