// libFuzzer over the reading of requests. The seeds are written by the program itself: run it with
// a folder for the corpus, or with none.

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/fuzz/request_check.h"
#include "tests/fuzz/request_seeds.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string wrong = attend::testing::CheckRequestBytes(data, size);
  if (!wrong.empty()) {
    std::fprintf(stderr, "%s\n", wrong.c_str());
    std::abort();
  }
  return 0;
}

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

// Starts from a seed now and then, so that no corpus has to lie in files.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned int seed) {
  static const std::vector<std::string> seeds = attend::testing::RequestSeeds();
  if (size <= 1 || seed % 64 == 0) {
    const std::string& start = seeds[(seed / 64) % seeds.size()];
    if (start.size() <= max_size) {
      std::memcpy(data, start.data(), start.size());
      size = start.size();
    }
  }
  return LLVMFuzzerMutate(data, size, max_size);
}
