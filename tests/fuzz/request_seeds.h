// Good requests of every form, as seeds for fuzzing.

#ifndef ATTEND_TESTS_FUZZ_REQUEST_SEEDS_H_
#define ATTEND_TESTS_FUZZ_REQUEST_SEEDS_H_

#include <string>
#include <vector>

namespace attend::testing {

// Inputs of CheckRequestBytes.
std::vector<std::string> RequestSeeds();

}  // namespace attend::testing

#endif  // ATTEND_TESTS_FUZZ_REQUEST_SEEDS_H_
