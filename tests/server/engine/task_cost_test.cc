#include "server/engine/task_cost.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/testing/fake_backend.h"

namespace attend {
namespace {

using testing::FakeDevice;
using testing::MakeFakeBackend;

AttentionTask SmallTask() {
  static float memory[1024];
  AttentionTask task;
  task.q = TensorView::Contiguous(memory, DType::kF16, MemoryKind::kHost, 3, 4, 8);
  task.k = TensorView::Contiguous(memory, DType::kF16, MemoryKind::kHost, 5, 2, 8);
  task.v = TensorView::Contiguous(memory, DType::kF16, MemoryKind::kHost, 5, 2, 6);
  task.o = TensorView::Contiguous(memory, DType::kF16, MemoryKind::kHost, 3, 4, 6);
  task.seqlen_q = 3;
  task.seqlen_k = 5;
  return task;
}

constexpr int64_t kTensors = 2 * (3 * 4 * 8 + 5 * 2 * 8 + 5 * 2 * 6 + 3 * 4 * 6);

TEST(TaskCostTest, CountsEachTensorOnce) {
  AttentionTask task = SmallTask();
  EXPECT_EQ(TensorBytes(task), kTensors);
  task.lse = {static_cast<float*>(task.q.data), MemoryKind::kHost, 3};
  EXPECT_EQ(TensorBytes(task), kTensors + 4 * 4 * 3);
  task.sinks = {static_cast<float*>(task.q.data), MemoryKind::kHost};
  task.alibi_slopes = task.sinks;
  EXPECT_EQ(TensorBytes(task), kTensors + 4 * 4 * 3 + 2 * 4 * 4);
}

TEST(TaskCostTest, ABroadcastBiasIsStoredOnce) {
  AttentionTask task = SmallTask();
  task.bias = {task.q.data, DType::kF32, MemoryKind::kHost, 15, 5};
  EXPECT_EQ(TensorBytes(task), kTensors + 4 * (4 * 3 * 5));
  task.bias.head_stride = 0;
  EXPECT_EQ(TensorBytes(task), kTensors + 4 * (3 * 5));
  task.bias.row_stride = 0;
  EXPECT_EQ(TensorBytes(task), kTensors + 4 * 5);
}

TEST(TaskCostTest, TakesTheLargerOfTensorsAndDeviceMemory) {
  auto device = std::make_shared<FakeDevice>();
  int64_t device_bytes = 10;
  device->device_bytes = [&](const AttentionTask&) { return device_bytes; };
  const auto backend = MakeFakeBackend(device);
  const AttentionTask task = SmallTask();
  EXPECT_EQ(CostOf(task, *backend).bytes, kTensors);
  device_bytes = 1 << 20;
  EXPECT_EQ(CostOf(task, *backend).bytes, 1 << 20);
  device_bytes = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(CostOf(task, *backend).bytes, kMostCountedBytes);
  EXPECT_EQ(CostOf(task, *backend).flops, 2.0 * (8 + 6) * 3 * 5 * 4);
  EXPECT_EQ(CostOf(task, *backend).kernel_class, backend->Classify(task));
}

TEST(TaskCostTest, HugeShapesSaturate) {
  AttentionTask task = SmallTask();
  task.q.rows = std::numeric_limits<int64_t>::max() / 2;
  EXPECT_EQ(TensorBytes(task), std::numeric_limits<int64_t>::max());
}

}  // namespace
}  // namespace attend
