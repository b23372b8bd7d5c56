// The staging pool: its promises by example, random use against a record of who holds what, and
// many threads at once.

#include "server/engine/staging_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "tests/testing/fake_backend.h"
#include "tests/testing/random.h"

namespace attend {
namespace {

using testing::FakeDevice;
using testing::MakeFakeBackend;
using testing::MixSeed;
using testing::Random;
using testing::TestSeed;

constexpr int64_t kKiB = 1024;
const Clock::time_point kStart{std::chrono::hours(1)};

class StagingPoolTest : public ::testing::Test {
 protected:
  std::unique_ptr<StagingPool> MakePool(int64_t limit, int64_t slab, int64_t initial) {
    StagingPoolOptions options;
    options.limit_bytes = limit;
    options.slab_bytes = slab;
    options.initial_bytes = initial;
    options.idle = std::chrono::seconds(30);
    absl::StatusOr<std::unique_ptr<StagingPool>> pool =
        StagingPool::Create(backend_.get(), options);
    EXPECT_TRUE(pool.ok()) << pool.status();
    return *std::move(pool);
  }

  std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  std::unique_ptr<Backend> backend_ = MakeFakeBackend(device_);
};

TEST_F(StagingPoolTest, TakesTheInitialBytesAtStartAndGivesAllBackAtTheEnd) {
  auto pool = MakePool(1024 * kKiB, 64 * kKiB, 100 * kKiB);
  EXPECT_EQ(pool->stats().reserved, 100 * kKiB);
  EXPECT_EQ(pool->stats().used, 0);
  EXPECT_EQ(pool->stats().limit, 1024 * kKiB);
  EXPECT_EQ(device_->staging_bytes(), 100 * kKiB);
  pool.reset();
  EXPECT_EQ(device_->staging_bytes(), 0);
}

TEST_F(StagingPoolTest, LeasesAreAlignedApartAndCounted) {
  auto pool = MakePool(1024 * kKiB, 64 * kKiB, 64 * kKiB);
  StagingLease a = pool->Allocate(1).value();
  StagingLease b = pool->Allocate(300).value();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % StagingPool::kAlignment, 0u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(b.data()) % StagingPool::kAlignment, 0u);
  EXPECT_EQ(a.size(), 1u);
  EXPECT_EQ(b.size(), 300u);
  EXPECT_TRUE(a.data() + 256 <= b.data() || b.data() + 512 <= a.data());
  EXPECT_EQ(pool->stats().used, 256 + 512);
  b = StagingLease();
  EXPECT_EQ(pool->stats().used, 256);
  EXPECT_EQ(pool->stats().peak, 256 + 512);
}

TEST_F(StagingPoolTest, NoBytesNeedNoMemory) {
  auto pool = MakePool(kKiB, kKiB, 0);
  StagingLease lease = pool->Allocate(0).value();
  EXPECT_EQ(lease.data(), nullptr);
  EXPECT_EQ(pool->stats().reserved, 0);
}

TEST_F(StagingPoolTest, MovedLeasesGiveBackOnce) {
  auto pool = MakePool(64 * kKiB, 64 * kKiB, 64 * kKiB);
  StagingLease a = pool->Allocate(kKiB).value();
  std::byte* const data = a.data();
  StagingLease b = std::move(a);
  EXPECT_EQ(b.data(), data);
  a = std::move(b);
  EXPECT_EQ(a.data(), data);
  EXPECT_EQ(pool->stats().used, kKiB);
  a = StagingLease();
  EXPECT_EQ(pool->stats().used, 0);
}

TEST_F(StagingPoolTest, NeighboursMergeSoThatAFullSlabFitsAgain) {
  auto pool = MakePool(64 * kKiB, 64 * kKiB, 64 * kKiB);
  for (const bool backwards : {false, true}) {
    std::vector<StagingLease> leases;
    for (int i = 0; i < 64; ++i) leases.push_back(pool->Allocate(kKiB).value());
    EXPECT_EQ(pool->Allocate(1).status().code(), absl::StatusCode::kResourceExhausted);
    while (!leases.empty()) {
      leases.erase(backwards ? leases.end() - 1 : leases.begin() + leases.size() / 2);
    }
    EXPECT_TRUE(pool->Allocate(64 * kKiB).ok());
  }
  EXPECT_EQ(pool->stats().reserved, 64 * kKiB);
}

TEST_F(StagingPoolTest, TheSmallestHoleThatFitsIsUsed) {
  auto pool = MakePool(64 * kKiB, 64 * kKiB, 64 * kKiB);
  StagingLease large = pool->Allocate(8 * kKiB).value();
  StagingLease wall = pool->Allocate(kKiB).value();
  StagingLease small = pool->Allocate(2 * kKiB).value();
  StagingLease end = pool->Allocate(kKiB).value();
  std::byte* const hole = small.data();
  large = StagingLease();
  small = StagingLease();
  EXPECT_EQ(pool->Allocate(2 * kKiB).value().data(), hole);
}

TEST_F(StagingPoolTest, GrowsBySlabsAndGivesLargeRequestsTheirOwn) {
  auto pool = MakePool(1024 * kKiB, 64 * kKiB, 0);
  StagingLease small = pool->Allocate(kKiB).value();
  EXPECT_EQ(pool->stats().reserved, 64 * kKiB);
  StagingLease large = pool->Allocate(200 * kKiB).value();
  EXPECT_EQ(pool->stats().reserved, 264 * kKiB);
  large = StagingLease();
  EXPECT_EQ(pool->stats().reserved, 264 * kKiB) << "kept for the next one";
  large = pool->Allocate(200 * kKiB).value();
  EXPECT_EQ(pool->stats().reserved, 264 * kKiB);
}

TEST_F(StagingPoolTest, NeverPassesTheLimit) {
  auto pool = MakePool(100 * kKiB, 64 * kKiB, 0);
  StagingLease a = pool->Allocate(64 * kKiB).value();
  StagingLease b = pool->Allocate(36 * kKiB).value();  // a smaller slab: what the budget has left
  EXPECT_EQ(pool->stats().reserved, 100 * kKiB);
  EXPECT_EQ(pool->Allocate(1).status().code(), absl::StatusCode::kResourceExhausted);
  a = StagingLease();
  EXPECT_TRUE(pool->Allocate(64 * kKiB).ok());
  EXPECT_EQ(pool->Allocate(SIZE_MAX).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(StagingPoolTest, UnusedSlabsMakeRoomForAnotherSize) {
  auto pool = MakePool(256 * kKiB, 64 * kKiB, 0);
  {
    std::vector<StagingLease> leases;
    for (int i = 0; i < 4; ++i) leases.push_back(pool->Allocate(64 * kKiB).value());
  }
  EXPECT_EQ(pool->stats().reserved, 256 * kKiB);
  StagingLease all = pool->Allocate(256 * kKiB).value();
  EXPECT_EQ(pool->stats().reserved, 256 * kKiB);
  EXPECT_EQ(device_->staging_bytes(), 256 * kKiB);
}

TEST_F(StagingPoolTest, ARefusalCostsNoSlab) {
  auto pool = MakePool(256 * kKiB, 64 * kKiB, 0);
  StagingLease used = pool->Allocate(64 * kKiB).value();
  { StagingLease unused = pool->Allocate(64 * kKiB).value(); }
  EXPECT_FALSE(pool->Allocate(200 * kKiB).ok());
  EXPECT_EQ(pool->stats().reserved, 128 * kKiB);
}

TEST_F(StagingPoolTest, TellsWhenTheHostHasNoMore) {
  auto pool = MakePool(256 * kKiB, 64 * kKiB, 0);
  device_->staging_limit = 64 * kKiB;
  StagingLease a = pool->Allocate(64 * kKiB).value();
  const absl::Status status = pool->Allocate(kKiB).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("the fake host has no more"));
  EXPECT_EQ(pool->stats().reserved, 64 * kKiB) << "a failed growth reserves nothing";
  a = StagingLease();
  EXPECT_TRUE(pool->Allocate(kKiB).ok());
}

TEST_F(StagingPoolTest, IdleSlabsGoBackButForTheInitialOnes) {
  auto pool = MakePool(1024 * kKiB, 64 * kKiB, 64 * kKiB);
  { StagingLease large = pool->Allocate(300 * kKiB).value(); }
  EXPECT_EQ(pool->stats().reserved, 364 * kKiB);
  pool->Trim(kStart);
  pool->Trim(kStart + std::chrono::seconds(29));
  EXPECT_EQ(pool->stats().reserved, 364 * kKiB) << "not idle for long enough";
  pool->Trim(kStart + std::chrono::seconds(30));
  EXPECT_EQ(pool->stats().reserved, 64 * kKiB);
  EXPECT_EQ(device_->staging_bytes(), 64 * kKiB);
}

TEST_F(StagingPoolTest, UseStartsTheIdleTimeAnew) {
  auto pool = MakePool(1024 * kKiB, 64 * kKiB, 0);
  { StagingLease lease = pool->Allocate(kKiB).value(); }
  pool->Trim(kStart);
  { StagingLease lease = pool->Allocate(kKiB).value(); }
  pool->Trim(kStart + std::chrono::seconds(40));
  EXPECT_EQ(pool->stats().reserved, 64 * kKiB);
  pool->Trim(kStart + std::chrono::seconds(70));
  EXPECT_EQ(pool->stats().reserved, 0);
}

TEST_F(StagingPoolTest, OptionsAreChecked) {
  StagingPoolOptions options;
  EXPECT_EQ(StagingPool::Create(backend_.get(), options).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// Fills every lease with its own byte and finds it unchanged at the end.
TEST_F(StagingPoolTest, RandomUseNeverOverlapsAndAlwaysAddsUp) {
  Random random(MixSeed(TestSeed(), "staging pool"));
  for (int round = 0; round < 20; ++round) {
    const int64_t limit = random.Between(32, 256) * kKiB;
    const int64_t initial = random.Between(0, 32) * kKiB;
    auto pool = MakePool(limit, random.Between(4, 64) * kKiB, initial);
    struct Held {
      StagingLease lease;
      unsigned char mark;
    };
    std::vector<Held> held;
    int64_t used = 0;
    int64_t peak = 0;
    const auto rounded = [](size_t bytes) {
      return static_cast<int64_t>((bytes + StagingPool::kAlignment - 1) / StagingPool::kAlignment *
                                  StagingPool::kAlignment);
    };
    for (int step = 0; step < 600; ++step) {
      if (held.empty() || random.Chance(0.55)) {
        const int64_t most = random.Chance(0.1) ? limit : limit / 8;
        const size_t bytes = static_cast<size_t>(random.Between(1, most));
        absl::StatusOr<StagingLease> lease = pool->Allocate(bytes);
        if (lease.ok()) {
          const unsigned char mark = static_cast<unsigned char>(random.Between(0, 255));
          std::memset(lease->data(), mark, bytes);
          used += rounded(bytes);
          held.push_back({*std::move(lease), mark});
        } else {
          ASSERT_FALSE(held.empty()) << "an unused pool gives anything up to its limit";
        }
      } else {
        const size_t i =
            static_cast<size_t>(random.Between(0, static_cast<int64_t>(held.size()) - 1));
        const StagingLease& lease = held[i].lease;
        // A byte of each unit, and the last: leases overlap by whole units.
        for (size_t b = 0; b < lease.size(); b += StagingPool::kAlignment) {
          ASSERT_EQ(static_cast<unsigned char>(lease.data()[b]), held[i].mark);
        }
        ASSERT_EQ(static_cast<unsigned char>(lease.data()[lease.size() - 1]), held[i].mark);
        used -= rounded(lease.size());
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
      }
      if (random.Chance(0.05)) pool->Trim(kStart + std::chrono::seconds(20) * step);
      peak = std::max(peak, used);
      const StagingStats stats = pool->stats();
      ASSERT_EQ(stats.used, used);
      ASSERT_EQ(stats.peak, peak);
      ASSERT_LE(stats.reserved, limit);
      ASSERT_GE(stats.reserved, used);
      ASSERT_EQ(stats.reserved, device_->staging_bytes());
    }
    held.clear();
    ASSERT_EQ(pool->stats().used, 0);
    ASSERT_TRUE(pool->Allocate(static_cast<size_t>(limit) / 256 * 256).ok())
        << "an unused pool gives anything up to its limit";
  }
}

TEST_F(StagingPoolTest, ManyThreadsShareIt) {
  auto pool = MakePool(512 * kKiB, 32 * kKiB, 32 * kKiB);
  const uint64_t seed = MixSeed(TestSeed(), "staging threads");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Random random(seed + static_cast<uint64_t>(t));
      std::vector<StagingLease> held;
      for (int step = 0; step < 300; ++step) {
        absl::StatusOr<StagingLease> lease =
            pool->Allocate(static_cast<size_t>(random.Between(1, 48 * kKiB)));
        if (lease.ok()) {
          std::memset(lease->data(), t, lease->size());
          held.push_back(*std::move(lease));
        }
        if (!held.empty() && (!lease.ok() || random.Chance(0.6))) {
          const StagingLease& first = held.front();
          EXPECT_EQ(static_cast<int>(first.data()[first.size() - 1]), t);
          held.erase(held.begin());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool->stats().used, 0);
  EXPECT_LE(pool->stats().reserved, 512 * kKiB);
  EXPECT_TRUE(pool->Allocate(512 * kKiB).ok());
}

}  // namespace
}  // namespace attend
