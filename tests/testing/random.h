// Random numbers for tests: a fresh seed for each run, printed, and fixed by ATTEND_TEST_SEED.

#ifndef ATTEND_TESTS_TESTING_RANDOM_H_
#define ATTEND_TESTS_TESTING_RANDOM_H_

#include <cstdint>
#include <string_view>

namespace attend::testing {

// The seed of this run: $ATTEND_TEST_SEED, else a fresh one. Printed when it is first asked for.
uint64_t TestSeed();

// A seed for one purpose, so that cases do not depend on which others ran before.
uint64_t MixSeed(uint64_t seed, std::string_view purpose);

// A small, fast generator (SplitMix64). Single-threaded.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next();
  double Uniform();                            // [0, 1)
  int64_t Between(int64_t low, int64_t high);  // both inclusive
  bool Chance(double share) { return Uniform() < share; }
  double Normal();  // mean 0, deviation 1

 private:
  uint64_t state_;
  double spare_ = 0;
  bool has_spare_ = false;
};

}  // namespace attend::testing

#endif  // ATTEND_TESTS_TESTING_RANDOM_H_
