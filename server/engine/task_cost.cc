#include "server/engine/task_cost.h"

#include <algorithm>
#include <limits>

namespace attend {
namespace {

constexpr int64_t kSaturated = std::numeric_limits<int64_t>::max();

int64_t Product(int64_t a, int64_t b) { return CheckedMultiply(a, b).value_or(kSaturated); }
int64_t Sum(int64_t a, int64_t b) { return CheckedAdd(a, b).value_or(kSaturated); }

int64_t Bytes(const TensorView& view) {
  if (view.absent()) return 0;
  return Product(Product(Product(view.rows, view.heads), view.columns), ByteSize(view.dtype));
}

// A broadcast dimension is stored once.
int64_t Bytes(const BiasView& bias, const AttentionTask& task) {
  if (bias.absent()) return 0;
  const int64_t heads = bias.head_stride == 0 ? 1 : task.heads_q();
  const int64_t rows = bias.row_stride == 0 ? 1 : task.seqlen_q;
  return Product(Product(Product(heads, rows), task.seqlen_k), ByteSize(bias.dtype));
}

}  // namespace

int64_t TensorBytes(const AttentionTask& task) {
  int64_t bytes = Sum(Sum(Bytes(task.q), Bytes(task.k)), Sum(Bytes(task.v), Bytes(task.o)));
  if (!task.lse.absent()) {
    bytes = Sum(bytes, Product(Product(task.heads_q(), task.padded_q()), ByteSize(DType::kF32)));
  }
  bytes = Sum(bytes, Bytes(task.bias, task));
  const int64_t head_vector = Product(task.heads_q(), ByteSize(DType::kF32));
  if (!task.alibi_slopes.absent()) bytes = Sum(bytes, head_vector);
  if (!task.sinks.absent()) bytes = Sum(bytes, head_vector);
  return bytes;
}

TaskCost CostOf(const AttentionTask& task, const Backend& backend) {
  TaskCost cost;
  cost.kernel_class = backend.Classify(task);
  cost.flops = Flops(task);
  cost.bytes = std::min(std::max(TensorBytes(task), backend.DeviceBytes(task)), kMostCountedBytes);
  return cost;
}

}  // namespace attend
