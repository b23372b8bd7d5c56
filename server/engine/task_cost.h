// What a task costs, in the terms of batch budgets and gauges.

#ifndef ATTEND_SERVER_ENGINE_TASK_COST_H_
#define ATTEND_SERVER_ENGINE_TASK_COST_H_

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/backend.h"

namespace attend {

struct TaskCost {
  KernelClass kernel_class;
  double flops = 0;
  int64_t bytes = 0;  // of device memory that it takes, or of its tensors where that is more;
                      // at most kMostCountedBytes
};

// More bytes than any machine has: a larger count is cut to this, so that sums cannot overflow.
inline constexpr int64_t kMostCountedBytes = int64_t{1} << 48;

// Bytes of all tensors of `task`, inputs and outputs, real and padded rows. Saturates at INT64_MAX.
int64_t TensorBytes(const AttentionTask& task);

// REQUIRES: Validate(task) and backend.Supports(task) are OK.
TaskCost CostOf(const AttentionTask& task, const Backend& backend);

}  // namespace attend

#endif  // ATTEND_SERVER_ENGINE_TASK_COST_H_
