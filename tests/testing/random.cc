#include "tests/testing/random.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <numbers>
#include <random>

namespace attend::testing {

uint64_t TestSeed() {
  static const uint64_t seed = [] {
    const char* text = std::getenv("ATTEND_TEST_SEED");
    const uint64_t chosen =
        text != nullptr ? std::strtoull(text, nullptr, 10) : uint64_t{std::random_device{}()};
    std::printf("[   SEED   ] ATTEND_TEST_SEED=%llu\n", static_cast<unsigned long long>(chosen));
    std::fflush(stdout);
    return chosen;
  }();
  return seed;
}

uint64_t MixSeed(uint64_t seed, std::string_view purpose) {
  Random random(seed);
  uint64_t mixed = random.Next();
  for (const char c : purpose) {
    mixed = Random(mixed ^ static_cast<unsigned char>(c)).Next();
  }
  return mixed;
}

uint64_t Random::Next() {
  state_ += 0x9e3779b97f4a7c15u;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

double Random::Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

int64_t Random::Between(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(Next() % static_cast<uint64_t>(high - low + 1));
}

double Random::Normal() {
  if (has_spare_) {
    has_spare_ = false;
    return spare_;
  }
  const double radius = std::sqrt(-2 * std::log(1 - Uniform()));
  const double angle = 2 * std::numbers::pi * Uniform();
  spare_ = radius * std::sin(angle);
  has_spare_ = true;
  return radius * std::cos(angle);
}

}  // namespace attend::testing
