// The arenas' accounting, on a source of blocks that only counts. Needs no device.

#include "kernels/cuda/device_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "tests/testing/random.h"

namespace attend::cuda {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Hands out addresses, no memory. `capacity` is what the "device" has in all.
class CountingSource final : public BlockSource {
 public:
  explicit CountingSource(int64_t capacity) : capacity_(capacity) {}
  absl::StatusOr<std::byte*> Allocate(size_t bytes) override {
    ++allocations;
    if (held + static_cast<int64_t>(bytes) > capacity_) {
      return absl::ResourceExhaustedError("the device has no more");
    }
    held += static_cast<int64_t>(bytes);
    next_ += 1 << 8;
    sizes_[next_] = static_cast<int64_t>(bytes);
    return reinterpret_cast<std::byte*>(next_);
  }
  void Free(std::byte* block) override {
    const auto found = sizes_.find(reinterpret_cast<uintptr_t>(block));
    ASSERT_NE(found, sizes_.end()) << "freed twice";
    held -= found->second;
    sizes_.erase(found);
  }
  int64_t held = 0;
  int allocations = 0;

 private:
  const int64_t capacity_;
  uintptr_t next_ = 0;
  std::map<uintptr_t, int64_t> sizes_;
};

struct Fixture {
  explicit Fixture(int64_t limit, int64_t capacity = INT64_MAX) {
    auto owned = std::make_unique<CountingSource>(capacity);
    source = owned.get();
    memory = std::make_unique<DeviceMemory>(std::move(owned), limit);
  }
  CountingSource* source;
  std::unique_ptr<DeviceMemory> memory;
};

TEST(DeviceMemoryTest, AWarmArenaAllocatesNothing) {
  Fixture f(100 * kMiB);
  const auto arena = f.memory->MakeArena();
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(arena->Acquire(10 * kMiB).ok());
    EXPECT_EQ(f.memory->Stats().used, 10 * kMiB);
    arena->Release();
    ASSERT_TRUE(arena->Acquire(0).ok());
    arena->Release();
  }
  EXPECT_EQ(f.source->allocations, 1);
  const DeviceMemoryStats stats = f.memory->Stats();
  EXPECT_EQ(stats.used, 0);
  EXPECT_EQ(stats.peak, 10 * kMiB);
  EXPECT_GE(stats.reserved, 10 * kMiB);
  EXPECT_EQ(stats.reserved, f.source->held);
  EXPECT_EQ(stats.limit, 100 * kMiB);
}

TEST(DeviceMemoryTest, MoreThanTheLimitIsRefused) {
  Fixture f(10 * kMiB);
  const auto arena = f.memory->MakeArena();
  EXPECT_EQ(arena->Acquire(10 * kMiB + 1).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(f.memory->Stats().used, 0);
  ASSERT_TRUE(arena->Acquire(10 * kMiB).ok());  // exactly the limit passes
  EXPECT_LE(f.memory->Stats().reserved, 10 * kMiB);
  arena->Release();
}

TEST(DeviceMemoryTest, IdleArenasGiveWay) {
  Fixture f(10 * kMiB);
  const auto a = f.memory->MakeArena();
  const auto b = f.memory->MakeArena();
  ASSERT_TRUE(a->Acquire(8 * kMiB).ok());
  a->Release();
  ASSERT_TRUE(b->Acquire(8 * kMiB).ok());
  EXPECT_LE(f.source->held, 10 * kMiB);
  b->Release();
}

TEST(DeviceMemoryTest, ADeviceWithLessThanTheLimitIsRefusedOnlyWhenNothingCanBeFreed) {
  Fixture f(100 * kMiB, 20 * kMiB);
  const auto a = f.memory->MakeArena();
  const auto b = f.memory->MakeArena();
  ASSERT_TRUE(a->Acquire(15 * kMiB).ok());
  a->Release();
  ASSERT_TRUE(b->Acquire(16 * kMiB).ok());
  b->Release();
  EXPECT_EQ(a->Acquire(30 * kMiB).status().code(), absl::StatusCode::kResourceExhausted);
  ASSERT_TRUE(a->Acquire(5 * kMiB).ok());  // and the next good one passes
  a->Release();
}

TEST(DeviceMemoryTest, WaitsForABusyArena) {
  Fixture f(10 * kMiB);
  const auto a = f.memory->MakeArena();
  const auto b = f.memory->MakeArena();
  ASSERT_TRUE(a->Acquire(8 * kMiB).ok());
  std::promise<void> started;
  std::future<bool> waiting = std::async(std::launch::async, [&] {
    started.set_value();
    const bool ok = b->Acquire(8 * kMiB).ok();
    b->Release();
    return ok;
  });
  started.get_future().wait();
  EXPECT_EQ(f.memory->Stats().used, 8 * kMiB);
  a->Release();
  EXPECT_TRUE(waiting.get());
  EXPECT_EQ(f.memory->Stats().used, 0);
}

TEST(DeviceMemoryTest, ManyThreadsStayWithinTheLimit) {
  constexpr int kThreads = 4;
  Fixture f(16 * kMiB);
  std::vector<std::future<void>> threads;
  std::atomic<int64_t> in_use = 0;
  const uint64_t seed = testing::MixSeed(testing::TestSeed(), "device_memory");
  for (int t = 0; t < kThreads; ++t) {
    threads.push_back(std::async(std::launch::async, [&, t] {
      testing::Random random(seed + static_cast<uint64_t>(t));
      const auto arena = f.memory->MakeArena();
      for (int i = 0; i < 300; ++i) {
        const int64_t bytes = random.Between(1, 12 * kMiB);
        ASSERT_TRUE(arena->Acquire(static_cast<size_t>(bytes)).ok());
        EXPECT_LE(in_use += bytes, 16 * kMiB);
        EXPECT_LE(f.memory->Stats().reserved, 16 * kMiB);
        in_use -= bytes;
        arena->Release();
      }
    }));
  }
  for (std::future<void>& thread : threads) thread.get();
  EXPECT_EQ(f.memory->Stats().used, 0);
  EXPECT_EQ(f.memory->Stats().reserved, 0);  // the arenas are gone
  EXPECT_EQ(f.source->held, 0);
}

}  // namespace
}  // namespace attend::cuda
