// The fuzzer's checks over random mutations of good requests, in every build.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/fuzz/request_check.h"
#include "tests/fuzz/request_seeds.h"
#include "tests/testing/random.h"

namespace attend::testing {
namespace {

std::string Check(const std::string& input) {
  return CheckRequestBytes(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

std::string Hex(const std::string& bytes) {
  std::string out;
  for (const unsigned char c : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    out += kDigits[c >> 4];
    out += kDigits[c & 15];
  }
  return out;
}

void Mutate(const std::vector<std::string>& seeds, Random* random, std::string* input) {
  const auto anywhere = [&] {
    return static_cast<size_t>(random->Between(0, static_cast<int64_t>(input->size()) - 1));
  };
  switch (random->Between(0, 6)) {
    case 0:  // flip a bit
      (*input)[anywhere()] ^= static_cast<char>(1 << random->Between(0, 7));
      break;
    case 1:  // another byte
      (*input)[anywhere()] = static_cast<char>(random->Next());
      break;
    case 2:  // a byte that matters to varints
      (*input)[anywhere()] = static_cast<char>(random->Chance(0.5) ? 0xff : 0x80);
      break;
    case 3:  // cut the end
      input->resize(anywhere() + 1);
      break;
    case 4:  // remove a piece
      input->erase(anywhere(), static_cast<size_t>(random->Between(1, 8)));
      if (input->empty()) input->push_back('\x02');
      break;
    case 5: {  // say something twice: a message after a message is a message
      input->append(
          seeds[static_cast<size_t>(random->Between(0, static_cast<int64_t>(seeds.size()) - 1))]
              .substr(1));
      break;
    }
    default: {  // a piece of itself somewhere else
      const std::string piece =
          input->substr(anywhere(), static_cast<size_t>(random->Between(1, 16)));
      input->insert(anywhere(), piece);
    }
  }
}

TEST(RequestMutationTest, SeedsAreGood) {
  for (const std::string& seed : RequestSeeds()) EXPECT_EQ(Check(seed), "") << Hex(seed);
}

TEST(RequestMutationTest, EveryPrefixIsHandled) {
  for (const std::string& seed : RequestSeeds()) {
    for (size_t length = 0; length <= seed.size(); ++length) {
      ASSERT_EQ(Check(seed.substr(0, length)), "") << Hex(seed.substr(0, length));
    }
  }
}

TEST(RequestMutationTest, MutationsAreHandled) {
  const std::vector<std::string> seeds = RequestSeeds();
  Random random(MixSeed(TestSeed(), "mutations"));
  for (int round = 0; round < 60000; ++round) {
    std::string input = seeds[static_cast<size_t>(round) % seeds.size()];
    input[0] = static_cast<char>((static_cast<int>(random.Next()) & ~1) | (input[0] & 1));
    for (int64_t i = random.Between(1, 4); i > 0; --i) Mutate(seeds, &random, &input);
    ASSERT_EQ(Check(input), "") << "round " << round << ": " << Hex(input);
  }
}

}  // namespace
}  // namespace attend::testing
