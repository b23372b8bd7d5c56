// Which keys a row counts, exactly, on every backend: by indicator values that rounding cannot
// blur, at any length.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "kernels/reference/reference.h"
#include "tests/kernels/exact_fixture.h"
#include "tests/testing/case_table.h"
#include "tests/testing/random.h"

namespace attend::testing {
namespace {

class ExactKeys : public OnExactBackend {};
ATTEND_INSTANTIATE_EXACT(ExactKeys);

MaskSpec RandomMask(Random& random) {
  const auto bound = [&]() -> std::optional<int64_t> {
    switch (random.Between(0, 3)) {
      case 0:
        return std::nullopt;
      case 1:
        return random.Between(0, 3);
      case 2:
        return random.Between(0, 300);
      default:
        return std::numeric_limits<int64_t>::max() - random.Between(0, 5);
    }
  };
  MaskSpec mask;
  mask.causal = random.Chance(0.5);
  mask.window_left = bound();
  mask.window_right = bound();
  return mask;
}

// All scores alike and V the unit matrix: o[i][j] is 1 / n where row i sees key j, and 0 elsewhere.
TEST_P(ExactKeys, EachRowSeesItsKeysAndNoOthers) {
  Random random(MixSeed(TestSeed(), "sees"));
  for (int trial = 0; trial < 40; ++trial) {
    const int64_t sk = random.Between(1, 256);
    const int64_t sq = random.Chance(0.3) ? random.Between(1, 4) : random.Between(1, 300);
    Tensors tensors(dtype(), sq, sk, 2, 1, 16, sk);
    tensors.task.mask = RandomMask(random);
    for (int64_t j = 0; j < sk; ++j) Tensors::Set(tensors.task.v, j, 0, j, 1);
    Run(tensors);
    for (int64_t i = 0; i < sq; ++i) {
      int64_t visible = 0;
      for (int64_t j = 0; j < sk; ++j) {
        visible += reference::Sees(tensors.task.mask, i, j, sq, sk) ? 1 : 0;
      }
      for (int64_t j = 0; j < sk; ++j) {
        const bool sees = reference::Sees(tensors.task.mask, i, j, sq, sk);
        for (int64_t h = 0; h < 2; ++h) {
          const double o = tensors.O(i, h, j);
          ASSERT_TRUE(sees ? std::fabs(o * static_cast<double>(visible) - 1) < 0.02 : o == 0)
              << "row " << i << " key " << j << " head " << h << " Sq " << sq << " Sk " << sk
              << " o " << o << " visible " << visible << " ATTEND_TEST_SEED=" << TestSeed();
        }
      }
    }
  }
}

// All scores alike, V marks blocks of 64 keys: o tells how many keys of each block were counted.
TEST_P(ExactKeys, NoKeyIsDroppedOrDoubledAtAnyLength) {
  constexpr int64_t kBlock = 64;
  Random random(MixSeed(TestSeed(), "count"));
  const struct {
    int64_t sq, sk, hq, hk;
  } shapes[] = {{1, Scaled(16384), 4, 1},
                {3, Scaled(16384) - random.Between(1, 200), 2, 2},
                {70, Scaled(8192) + random.Between(0, 300), 2, 1},
                {1, 1 + random.Between(0, 3000), 8, 1},
                {130, Scaled(4096) - random.Between(0, 100), 1, 1}};
  for (const auto& [sq, sk, hq, hk] : shapes) {
    const int64_t blocks = (sk + kBlock - 1) / kBlock;
    for (int64_t pass = 0; pass < blocks; pass += kMaxHeadDim) {
      const int64_t columns = std::min(kMaxHeadDim, blocks - pass);
      Tensors tensors(dtype(), sq, sk, hq, hk, 32, columns);
      tensors.task.mask.causal = true;
      for (int64_t j = 0; j < sk; ++j) {
        const int64_t column = j / kBlock - pass;
        for (int64_t h = 0; h < hk && column >= 0 && column < columns; ++h) {
          Tensors::Set(tensors.task.v, j, h, column, 1);
        }
      }
      Run(tensors);
      for (int64_t i = 0; i < sq; ++i) {
        const int64_t visible = sk - sq + i + 1;
        for (int64_t c = 0; c < columns; ++c) {
          const int64_t first = (pass + c) * kBlock;
          const int64_t count = std::clamp<int64_t>(visible - first, 0, kBlock);
          for (int64_t h = 0; h < hq; ++h) {
            const double counted = tensors.O(i, h, c) * static_cast<double>(visible);
            ASSERT_LT(std::fabs(counted - static_cast<double>(count)), 0.5)
                << "keys " << first << " on, row " << i << " head " << h << " Sq " << sq << " Sk "
                << sk << " ATTEND_TEST_SEED=" << TestSeed();
          }
        }
      }
    }
  }
}

// Every row's scores single out one key, whose V row is its number in binary: o is that row.
TEST_P(ExactKeys, EveryRowFindsItsKeyAtAnyLength) {
  constexpr int64_t kDim = 64;
  constexpr int64_t kBits = 17;
  Random random(MixSeed(TestSeed(), "find"));
  for (const auto& [sq, sk, causal] :
       {std::tuple<int64_t, int64_t, bool>{100, Scaled(20000), false},
        {1, Scaled(30000), false},
        {257, 700, true}}) {
    Tensors tensors(dtype(), sq, sk, 2, 1, kDim, kBits);
    tensors.task.mask.causal = causal;
    tensors.task.softmax_scale = 4;  // a match scores 256, any other key far less
    std::vector<uint64_t> codes(static_cast<size_t>(sk));
    for (int64_t j = 0; j < sk; ++j) {
      codes[static_cast<size_t>(j)] = random.Next();
      for (int64_t c = 0; c < kDim; ++c) {
        const bool one = ((codes[static_cast<size_t>(j)] >> c) & 1) != 0;
        Tensors::Set(tensors.task.k, j, 0, c, one ? 1 : -1);
      }
      for (int64_t b = 0; b < kBits; ++b) {
        Tensors::Set(tensors.task.v, j, 0, b, static_cast<double>((j >> b) & 1));
      }
    }
    std::vector<int64_t> wanted;
    for (int64_t i = 0; i < sq; ++i) {
      for (int64_t h = 0; h < 2; ++h) {
        wanted.push_back(random.Between(0, causal ? i + sk - sq : sk - 1));
        const uint64_t code = codes[static_cast<size_t>(wanted.back())];
        for (int64_t c = 0; c < kDim; ++c) {
          Tensors::Set(tensors.task.q, i, h, c, ((code >> c) & 1) != 0 ? 1 : -1);
        }
      }
    }
    Run(tensors);
    for (int64_t i = 0; i < sq; ++i) {
      for (int64_t h = 0; h < 2; ++h) {
        const int64_t want = wanted[static_cast<size_t>(2 * i + h)];
        int64_t got = 0;
        for (int64_t b = 0; b < kBits; ++b) {
          const double bit = tensors.O(i, h, b);
          ASSERT_TRUE(std::fabs(bit) < 1e-3 || std::fabs(bit - 1) < 1e-3) << bit;
          got |= static_cast<int64_t>(std::lround(bit)) << b;
        }
        ASSERT_EQ(got, want) << "row " << i << " head " << h << " Sk " << sk
                             << " ATTEND_TEST_SEED=" << TestSeed();
      }
    }
  }
}

}  // namespace
}  // namespace attend::testing
