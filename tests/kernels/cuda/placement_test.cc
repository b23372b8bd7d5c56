// Placement against a model: copies are carried out on plain arrays of bytes, and what the tasks
// then see, and what the host then holds, is compared byte for byte. Needs no device.

#include "kernels/cuda/placement.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "kernels/attention.h"
#include "tests/testing/random.h"

namespace attend::cuda {
namespace {

using ::attend::testing::MixSeed;
using ::attend::testing::Random;
using ::attend::testing::TestSeed;

// Host memory with random contents, handed out piece by piece.
class HostMemory {
 public:
  HostMemory(size_t bytes, uint64_t seed) : bytes_(bytes + 4096), random_(seed) {
    for (size_t i = 0; i + sizeof(uint64_t) <= bytes_.size(); i += sizeof(uint64_t)) {
      const uint64_t x = random_.Next();
      std::memcpy(&bytes_[i], &x, sizeof(x));
    }
    const size_t misfit = reinterpret_cast<uintptr_t>(bytes_.data()) % 4096;
    base_ = bytes_.data() + (4096 - misfit) % 4096;
  }
  std::byte* Take(size_t bytes, size_t alignment) {
    used_ = (used_ + alignment - 1) / alignment * alignment;
    std::byte* const at = base_ + used_;
    used_ += bytes;
    EXPECT_LE(used_, bytes_.size() - 4096);
    return at;
  }
  std::byte* base() const { return base_; }
  size_t used() const { return used_; }
  HostRange range() const { return {base_, base_ + bytes_.size() - 4096}; }
  std::vector<std::byte>& bytes() { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
  Random random_;
  std::byte* base_ = nullptr;
  size_t used_ = 0;
};

size_t Bytes(const TensorView& view) {
  return static_cast<size_t>(view.rows * view.heads * view.columns * ByteSize(view.dtype));
}

// A contiguous tensor in `memory`.
TensorView Tensor(HostMemory* memory, MemoryKind kind, DType dtype, int64_t rows, int64_t heads,
                  int64_t columns, size_t alignment) {
  TensorView view = TensorView::Contiguous(nullptr, dtype, kind, rows, heads, columns);
  view.data = memory->Take(Bytes(view), alignment);
  return view;
}

// q | k | v | o | lse one after another, as the server lays a request out.
AttentionTask Request(HostMemory* memory, MemoryKind kind, DType dtype, int64_t sq, int64_t sk,
                      int64_t heads_q, int64_t heads_k, int64_t d, size_t alignment) {
  AttentionTask task;
  task.q = Tensor(memory, kind, dtype, sq, heads_q, d, alignment);
  task.k = Tensor(memory, kind, dtype, sk, heads_k, d, alignment);
  task.v = Tensor(memory, kind, dtype, sk, heads_k, d, alignment);
  task.o = Tensor(memory, kind, dtype, sq, heads_q, d, alignment);
  task.lse = {reinterpret_cast<float*>(
                  memory->Take(static_cast<size_t>(heads_q * sq) * sizeof(float), alignment)),
              kind, sq};
  task.seqlen_q = sq;
  task.seqlen_k = sk;
  return task;
}

void Carry(const std::vector<Copy>& copies, std::byte* device, bool in) {
  for (const Copy& copy : copies) {
    for (size_t row = 0; row < copy.height; ++row) {
      std::byte* const host = copy.host + row * copy.host_pitch;
      std::byte* const at = device + copy.device_offset + row * copy.device_pitch;
      std::memcpy(in ? at : host, in ? host : at, copy.width);
    }
  }
}

// Elements of a view in order, wherever they lie.
template <typename F>
void ForEachRow(const std::byte* data, int64_t rows, int64_t heads, int64_t row_stride,
                int64_t head_stride, int64_t element, F f) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t h = 0; h < heads; ++h) f(data + (i * row_stride + h * head_stride) * element);
  }
}

void ExpectSame(const TensorView& host, int64_t rows, const void* device, int64_t row_stride,
                int64_t head_stride, const char* name) {
  std::vector<const std::byte*> want, got;
  const int64_t element = ByteSize(host.dtype);
  ForEachRow(static_cast<const std::byte*>(host.data), rows, host.heads, host.row_stride,
             host.head_stride, element, [&](const std::byte* p) { want.push_back(p); });
  ForEachRow(static_cast<const std::byte*>(device), rows, host.heads, row_stride, head_stride,
             element, [&](const std::byte* p) { got.push_back(p); });
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_EQ(0, std::memcmp(want[i], got[i], static_cast<size_t>(host.columns * element)))
        << name << " vector " << i;
  }
}

// Carries out the placement of `tasks` and checks everything it promises.
void Check(const std::vector<AttentionTask>& tasks, const HostRanges& slabs,
           std::vector<HostMemory*> memories) {
  Placement placement;
  placement.Plan(tasks, slabs);
  std::vector<std::byte> storage(placement.device_bytes() + kDeviceAlignment, std::byte{0xa5});
  const size_t misfit = reinterpret_cast<uintptr_t>(storage.data()) % kDeviceAlignment;
  std::byte* const device = storage.data() + (kDeviceAlignment - misfit) % kDeviceAlignment;
  Carry(placement.copies_in(), device, true);
  std::vector<DeviceTask> placed;
  placement.Resolve(tasks, device, &placed);

  std::vector<std::vector<std::byte>> expected;
  for (HostMemory* memory : memories) expected.push_back(memory->bytes());
  const auto shadow = [&](const void* pointer) -> std::byte* {
    const std::byte* const p = static_cast<const std::byte*>(pointer);
    for (size_t m = 0; m < memories.size(); ++m) {
      std::vector<std::byte>& bytes = memories[m]->bytes();
      if (p >= bytes.data() && p < bytes.data() + bytes.size()) {
        return expected[m].data() + (p - bytes.data());
      }
    }
    ADD_FAILURE() << "a pointer outside the host memory";
    return nullptr;
  };
  uint32_t mark = 1;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const AttentionTask& task = tasks[i];
    const DeviceTask& d = placed[i];
    ExpectSame(task.q, task.seqlen_q, d.q, d.q_row_stride, d.q_head_stride, "q");
    ExpectSame(task.k, task.seqlen_k, d.k, d.k_row_stride, d.k_head_stride, "k");
    ExpectSame(task.v, task.seqlen_k, d.v, d.v_row_stride, d.v_head_stride, "v");
    for (const void* pointer : {d.q, d.k, d.v, static_cast<const void*>(d.o)}) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(pointer) % 16, 0u);
    }
    // The "kernel" writes marks to every output element; the same go to the expected host bytes.
    const int64_t element = ByteSize(task.o.dtype);
    for (int64_t row = 0; row < task.padded_q(); ++row) {
      for (int64_t head = 0; head < task.heads_q(); ++head) {
        for (int64_t c = 0; c < task.head_dim_v(); ++c, ++mark) {
          std::memcpy(static_cast<std::byte*>(d.o) +
                          (row * d.o_row_stride + head * d.o_head_stride + c) * element,
                      &mark, static_cast<size_t>(element));
          std::memcpy(shadow(task.o.data) +
                          (row * task.o.row_stride + head * task.o.head_stride + c) * element,
                      &mark, static_cast<size_t>(element));
        }
        if (task.lse.absent()) continue;
        ++mark;
        std::memcpy(d.lse + head * d.lse_head_stride + row, &mark, sizeof(mark));
        std::memcpy(shadow(task.lse.data + head * task.lse.head_stride + row), &mark, sizeof(mark));
      }
    }
  }
  Carry(placement.copies_out(), device, false);
  for (size_t m = 0; m < memories.size(); ++m) {
    EXPECT_EQ(memories[m]->bytes(), expected[m]) << "an output is missing or another byte changed";
  }
  size_t bytes_out = 0;
  for (const Copy& copy : placement.copies_out()) bytes_out += copy.bytes();
  EXPECT_EQ(bytes_out, placement.bytes_out());
}

TEST(PlacementTest, ARequestInASlabIsOneCopyEachWay) {
  HostMemory slab(1 << 20, 1);
  const AttentionTask task =
      Request(&slab, MemoryKind::kPinned, DType::kBF16, 64, 100, 4, 2, 64, 256);
  Placement placement;
  placement.Plan({&task, 1}, {slab.range()});
  EXPECT_EQ(placement.copies_in().size(), 1u);
  EXPECT_EQ(placement.copies_out().size(), 1u);  // o fills whole units of 256 bytes, lse follows
  Check({task}, {slab.range()}, {&slab});
}

TEST(PlacementTest, NeighboursInASlabShareACopyWhileTheGapIsSmall) {
  HostMemory slab(8 << 20, 2);
  std::vector<AttentionTask> tasks;
  for (int i = 0; i < 8; ++i) {
    tasks.push_back(Request(&slab, MemoryKind::kPinned, DType::kF16, 10, 12, 2, 2, 64, 256));
  }
  slab.Take(1 << 20, 256);  // far away
  tasks.push_back(Request(&slab, MemoryKind::kPinned, DType::kF16, 10, 12, 2, 2, 64, 256));
  Placement placement;
  placement.Plan(tasks, {slab.range()});
  EXPECT_EQ(placement.copies_in().size(), 2u);
  EXPECT_EQ(placement.copies_out().size(), 9u);  // one for each o and its lse
  Check(tasks, {slab.range()}, {&slab});
}

TEST(PlacementTest, NoCopyCrossesFromOneAllocationIntoAnother) {
  HostMemory memory(1 << 20, 3);
  const AttentionTask task =
      Request(&memory, MemoryKind::kPinned, DType::kF32, 4, 4, 2, 2, 64, 256);
  // The same bytes, as two slabs that touch between k and v.
  const std::byte* const border = static_cast<const std::byte*>(task.v.data);
  const HostRanges slabs = {{memory.base(), border}, {border, memory.range().end}};
  Placement placement;
  placement.Plan({&task, 1}, slabs);
  for (const Copy& copy : placement.copies_in()) {
    EXPECT_TRUE(copy.host + copy.width <= border || copy.host >= border);
  }
  EXPECT_EQ(placement.copies_in().size(), 2u);
  // Page-locked by somebody else: every tensor is copied by itself.
  placement.Plan({&task, 1}, {});
  EXPECT_EQ(placement.copies_in().size(), 3u);
  EXPECT_EQ(placement.copies_out().size(), 2u);
  Check({task}, {}, {&memory});
}

TEST(PlacementTest, RaggedLseIsOneCopy) {
  constexpr int64_t kHeads = 3;
  const std::vector<int64_t> lengths = {5, 1, 17, 9};
  int64_t total = 0;
  for (int64_t length : lengths) total += length;
  HostMemory slab(1 << 20, 4);
  const TensorView q = Tensor(&slab, MemoryKind::kPinned, DType::kF16, total, kHeads, 64, 256);
  const TensorView k = Tensor(&slab, MemoryKind::kPinned, DType::kF16, total, kHeads, 64, 256);
  const TensorView v = Tensor(&slab, MemoryKind::kPinned, DType::kF16, total, kHeads, 64, 256);
  const TensorView o = Tensor(&slab, MemoryKind::kPinned, DType::kF16, total, kHeads, 64, 256);
  float* const lse = reinterpret_cast<float*>(slab.Take(sizeof(float) * kHeads * total, 256));
  std::vector<AttentionTask> tasks;
  int64_t begin = 0;
  for (int64_t length : lengths) {
    const auto part = [&](TensorView view) {
      view.rows = length;
      view.data = static_cast<std::byte*>(view.data) + begin * view.row_stride * 2;
      return view;
    };
    AttentionTask task;
    task.q = part(q);
    task.k = part(k);
    task.v = part(v);
    task.o = part(o);
    task.lse = {lse + begin, MemoryKind::kPinned, total};
    task.seqlen_q = task.seqlen_k = length;
    tasks.push_back(task);
    begin += length;
  }
  Placement placement;
  placement.Plan(tasks, {slab.range()});
  EXPECT_EQ(placement.copies_in().size(), 1u);
  ASSERT_EQ(placement.copies_out().size(), 2u);
  for (const Copy& copy : placement.copies_out()) EXPECT_EQ(copy.height, 1u);
  Check(tasks, {slab.range()}, {&slab});
}

TEST(PlacementTest, TensorsOnTheDeviceStayThere) {
  HostMemory device(1 << 20, 5);
  AttentionTask task = Request(&device, MemoryKind::kDevice, DType::kF32, 4, 4, 2, 2, 64, 256);
  task.mask.causal = true;
  Placement placement;
  placement.Plan({&task, 1}, {});
  EXPECT_EQ(placement.device_bytes(), 0u);
  std::vector<DeviceTask> placed;
  placement.Resolve({&task, 1}, nullptr, &placed);
  EXPECT_EQ(placed[0].q, task.q.data);
  EXPECT_EQ(placed[0].o, task.o.data);
  EXPECT_EQ(placed[0].lse, task.lse.data);
  EXPECT_EQ(placed[0].lse_head_stride, task.lse.head_stride);
  EXPECT_EQ(placed[0].window_left, kUnbounded);
  EXPECT_EQ(placed[0].window_right, 0);
}

TEST(PlacementTest, CausalMeetsWindowAndBoundsSaturate) {
  HostMemory device(1 << 20, 6);
  AttentionTask task = Request(&device, MemoryKind::kDevice, DType::kF32, 4, 4, 2, 2, 64, 256);
  task.mask.window_left = INT64_MAX;
  task.mask.window_right = 3;
  Placement placement;
  placement.Plan({&task, 1}, {});
  std::vector<DeviceTask> placed;
  placement.Resolve({&task, 1}, nullptr, &placed);
  EXPECT_EQ(placed[0].window_left, kUnbounded);
  EXPECT_EQ(placed[0].window_right, 3);
}

// An output with gaps: rows, heads, or both.
TensorView Strided(HostMemory* memory, MemoryKind kind, DType dtype, int64_t rows, int64_t heads,
                   int64_t columns, Random* random) {
  TensorView view = TensorView::Contiguous(nullptr, dtype, kind, rows, heads, columns);
  const int64_t pad = random->Between(0, 3) * 8;
  if (random->Chance(0.5)) {
    view.head_stride = columns + (random->Chance(0.5) ? pad : 0);
    view.row_stride = heads * view.head_stride + random->Between(0, 2) * 8;
  } else {
    view.row_stride = columns + (random->Chance(0.3) ? pad : 0);
    view.head_stride = rows * view.row_stride + random->Between(0, 2) * 8;
  }
  const int64_t elements = (rows - 1) * view.row_stride + (heads - 1) * view.head_stride + columns;
  view.data = memory->Take(static_cast<size_t>(elements * ByteSize(dtype)), 16);
  return view;
}

TEST(PlacementTest, RandomBatchesArriveAndReturn) {
  const uint64_t seed = MixSeed(TestSeed(), "placement");
  Random random(seed);
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(round);
    HostMemory slab(4 << 20, random.Next());
    HostMemory pageable(4 << 20, random.Next());
    HostMemory foreign(4 << 20, random.Next());
    struct Place {
      HostMemory* memory;
      MemoryKind kind;
    } places[] = {{&slab, MemoryKind::kPinned},
                  {&pageable, MemoryKind::kHost},
                  {&foreign, MemoryKind::kPinned}};
    std::vector<AttentionTask> tasks;
    const int64_t count = random.Between(1, 9);
    for (int64_t i = 0; i < count; ++i) {
      const Place& place = places[random.Between(0, 2)];
      const DType dtype = static_cast<DType>(random.Between(0, 2));
      const size_t alignment = random.Chance(0.5) ? 256 : 4;
      const int64_t heads_k = random.Between(1, 3);
      AttentionTask task =
          Request(place.memory, place.kind, dtype, random.Between(1, 40), random.Between(1, 40),
                  heads_k * random.Between(1, 3), heads_k, random.Between(1, 20) * 4, alignment);
      if (random.Chance(0.3)) {
        task.o = Strided(place.memory, place.kind, dtype, task.q.rows, task.q.heads, task.v.columns,
                         &random);
      }
      if (random.Chance(0.3)) {  // padded
        task.seqlen_q = random.Between(0, task.q.rows);
        task.seqlen_k = random.Between(0, task.k.rows);
      }
      if (random.Chance(0.2)) task.lse = {};
      tasks.push_back(task);
      if (random.Chance(0.3)) place.memory->Take(static_cast<size_t>(random.Between(1, 300)), 1);
    }
    Check(tasks, {slab.range()}, {&slab, &pageable, &foreign});
  }
}

}  // namespace
}  // namespace attend::cuda
