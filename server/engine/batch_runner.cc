#include "server/engine/batch_runner.h"

#include <exception>
#include <new>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/errors.h"
#include "server/engine/reasons.h"

namespace attend {
namespace {

// The place nearest to the middle of [begin, end) where the owner changes; end when there is none.
size_t MiddleBoundary(absl::Span<const uint64_t> owners, size_t begin, size_t end) {
  const size_t middle = begin + (end - begin) / 2;
  for (size_t step = 0; step < end - begin; ++step) {
    // middle - step may wrap around; it is not below `end` then.
    for (const size_t cut : {middle + step, middle - step}) {
      if (cut > begin && cut < end && owners[cut] != owners[cut - 1]) return cut;
    }
  }
  return end;
}

absl::Status KernelFailed(const absl::Status& cause) {
  return WithReason(
      absl::InternalError(absl::StrCat("the batch failed on the device: ", cause.message())),
      kReasonKernelFailed);
}

absl::Status DeviceMemory(const absl::Status& cause) {
  return WithReason(
      absl::ResourceExhaustedError(absl::StrCat(
          "the device has too little memory for this request alone: ", cause.message())),
      kReasonDeviceMemory);
}

}  // namespace

BatchRunner::BatchRunner(const Backend* backend, std::unique_ptr<Executor> executor,
                         EngineObserver* observer)
    : backend_(backend), executor_(std::move(executor)), observer_(observer) {}

absl::Status BatchRunner::RunOnce(absl::Span<const AttentionTask> tasks, BatchReport* report) {
  // Libraries below may throw, std::bad_alloc above all; a worker must outlive that.
  try {
    return executor_->Run(AttentionBatch{tasks}, report);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("the host has too little memory");
  } catch (const std::exception& error) {
    return absl::InternalError(error.what());
  }
}

void BatchRunner::Run(absl::Span<const AttentionTask> tasks, absl::Span<const uint64_t> owners,
                      absl::FunctionRef<void(RunResult)> on_result) {
  // The one owner known to have failed: its parts follow one another, so the last one is enough.
  std::optional<uint64_t> failed_owner;
  absl::Status failure;
  absl::Status sick;
  todo_.assign(1, {0, tasks.size()});
  while (!todo_.empty()) {
    const Range range = todo_.back();
    todo_.pop_back();
    const size_t count = range.end - range.begin;
    if (count == 0) continue;
    const bool one_owner = owners[range.begin] == owners[range.end - 1];
    if (!sick.ok()) {
      on_result({range.begin, range.end, KernelFailed(sick), {}});
      continue;
    }
    if (one_owner && failed_owner == owners[range.begin]) {
      on_result({range.begin, range.end, failure, {}});
      continue;
    }
    BatchReport report;
    const absl::Status status = RunOnce(tasks.subspan(range.begin, count), &report);
    if (status.ok()) {
      on_result({range.begin, range.end, status, std::move(report)});
      continue;
    }
    const bool out_of_memory = absl::IsResourceExhausted(status);
    if (out_of_memory) observer_->OnAllocationFailure("device");
    if (!backend_->Healthy().ok()) {
      sick = status;
      on_result({range.begin, range.end, KernelFailed(sick), {}});
      continue;
    }
    if (out_of_memory ? count == 1 : one_owner) {
      failed_owner = owners[range.begin];
      failure = out_of_memory ? DeviceMemory(status) : KernelFailed(status);
      on_result({range.begin, range.end, failure, {}});
      continue;
    }
    const size_t cut =
        one_owner ? range.begin + count / 2 : MiddleBoundary(owners, range.begin, range.end);
    todo_.push_back({cut, range.end});
    todo_.push_back({range.begin, cut});
  }
}

}  // namespace attend
