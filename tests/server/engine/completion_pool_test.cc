#include "server/engine/completion_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <numeric>
#include <vector>

namespace attend {
namespace {

TEST(CompletionPoolTest, RunsEverythingBeforeItEnds) {
  std::atomic<int> ran{0};
  {
    CompletionPool pool(3);
    for (int i = 0; i < 1000; ++i) pool.Post([&] { ++ran; });
  }
  EXPECT_EQ(ran, 1000);
}

TEST(CompletionPoolTest, OneThreadKeepsTheOrder) {
  std::vector<int> order;
  {
    CompletionPool pool(1);
    for (int i = 0; i < 100; ++i) pool.Post([&order, i] { order.push_back(i); });
  }
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST(CompletionPoolTest, WorkMayPostMoreAndOwnThings) {
  std::atomic<int> ran{0};
  {
    CompletionPool pool(2);
    pool.Post([&, owned = std::make_unique<int>(5)] {
      for (int i = 0; i < *owned; ++i) pool.Post([&] { ++ran; });
    });
  }
  EXPECT_EQ(ran, 5);
}

}  // namespace
}  // namespace attend
