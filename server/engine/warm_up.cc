#include "server/engine/warm_up.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/attention.h"

namespace attend {
namespace {

struct Shape {
  int64_t seqlen_q;
  int64_t seqlen_k;
  int64_t head_dim;
};
// The head sizes of most models; many queries, and one query over many keys.
constexpr Shape kShapes[] = {{128, 128, 64}, {128, 128, 128}, {1, 256, 64}, {1, 256, 128}};
constexpr int64_t kHeads = 4;
constexpr DType kDTypes[] = {DType::kF32, DType::kF16, DType::kBF16};
constexpr size_t kAlignment = 256;

size_t ViewBytes(const Shape& shape, int64_t rows) {
  const size_t bytes = static_cast<size_t>(rows * kHeads * shape.head_dim * ByteSize(DType::kF32));
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

size_t TaskBytes(const Shape& shape) {
  return 2 * ViewBytes(shape, shape.seqlen_q) + 2 * ViewBytes(shape, shape.seqlen_k);
}

AttentionTask MakeTask(const Shape& shape, DType dtype, const Staging& memory) {
  std::byte* next = memory.data();
  const auto view = [&](int64_t rows) {
    std::byte* data = next;
    next += ViewBytes(shape, rows);
    return TensorView::Contiguous(data, dtype, memory.memory_kind(), rows, kHeads, shape.head_dim);
  };
  AttentionTask task;
  task.q = view(shape.seqlen_q);
  task.k = view(shape.seqlen_k);
  task.v = view(shape.seqlen_k);
  task.o = view(shape.seqlen_q);
  task.seqlen_q = shape.seqlen_q;
  task.seqlen_k = shape.seqlen_k;
  task.softmax_scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
  return task;
}

}  // namespace

absl::Status RunWarmUpTasks(Backend* backend, BatchRunner* runner) {
  size_t bytes = 0;
  for (const Shape& shape : kShapes) bytes = std::max(bytes, TaskBytes(shape));
  const absl::StatusOr<std::unique_ptr<Staging>> memory = backend->AllocateStaging(bytes);
  if (!memory.ok()) return memory.status();
  std::fill_n((*memory)->data(), bytes, std::byte{0});  // 0 in every dtype
  for (const DType dtype : kDTypes) {
    for (const Shape& shape : kShapes) {
      const AttentionTask task = MakeTask(shape, dtype, **memory);
      if (!backend->Supports(task).ok()) continue;
      BatchReport report;
      if (absl::Status status = runner->RunOnce(absl::MakeConstSpan(&task, 1), &report);
          !status.ok()) {
        return status;
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace attend
