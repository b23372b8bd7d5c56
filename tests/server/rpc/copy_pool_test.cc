#include "server/rpc/copy_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <future>
#include <memory>

#include "tests/testing/random.h"

namespace attend {
namespace {

using testing::Random;

TEST(CopyPoolTest, GathersPiecesOfAnySize) {
  Random random(testing::MixSeed(testing::TestSeed(), "copy_pool"));
  CopyPool pool(3);
  for (const size_t total :
       {size_t{0}, size_t{1}, CopyPool::kInlineBytes, CopyPool::kInlineBytes + 1,
        CopyPool::kChunkBytes, 5 * CopyPool::kChunkBytes + 7}) {
    std::vector<uint8_t> from(total);
    for (uint8_t& byte : from) byte = static_cast<uint8_t>(random.Next());
    std::vector<std::byte> to(total);
    std::vector<CopyPiece> pieces;
    for (size_t at = 0; at < total;) {
      const size_t size =
          std::min<size_t>(total - at, static_cast<size_t>(random.Between(1, 70000)));
      pieces.push_back({to.data() + at, {from.data() + at, size}});
      at += size;
    }
    std::promise<void> done;
    pool.Gather(std::move(pieces), [&] { done.set_value(); });
    done.get_future().wait();
    EXPECT_TRUE(total == 0 || std::memcmp(from.data(), to.data(), total) == 0) << total;
  }
}

TEST(CopyPoolTest, DestructionFinishesWhatWasHandedOver) {
  constexpr int kGathers = 50;
  constexpr size_t kBytes = 3 * CopyPool::kChunkBytes;
  const std::vector<uint8_t> from(kBytes, 7);
  std::vector<std::byte> to(kBytes);
  std::atomic<int> done{0};
  {
    CopyPool pool(2);
    for (int i = 0; i < kGathers; ++i) {
      pool.Gather({{to.data(), {from.data(), kBytes}}}, [&] { ++done; });
    }
  }
  EXPECT_EQ(done, kGathers);
}

TEST(CopyPoolTest, SmallGathersStayOnTheCallersThread) {
  CopyPool pool(1);
  std::thread::id where;
  pool.Gather({}, [&] { where = std::this_thread::get_id(); });
  EXPECT_EQ(where, std::this_thread::get_id());
}

}  // namespace
}  // namespace attend
