// Causal attention of one sequence: 300 tokens, 8 query heads over 2 key heads, dimension 64.

#include <attend/client.h>

#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

namespace ac = attend::client;

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s HOST:PORT\n", argv[0]);
    return 2;
  }
  constexpr int64_t kTokens = 300, kHeads = 8, kKvHeads = 2, kDim = 64;
  std::mt19937 generator(1);
  std::normal_distribution<float> normal;
  const auto random = [&](int64_t heads) {
    std::vector<float> values(static_cast<size_t>(kTokens * heads * kDim));
    for (float& value : values) value = normal(generator);
    return values;
  };
  const std::vector<float> q = random(kHeads), k = random(kKvHeads), v = random(kKvHeads);

  const auto client = ac::Client::Create(argv[1]);
  if (!client.ok()) {
    std::fprintf(stderr, "%s\n", client.status().ToString().c_str());
    return 1;
  }
  const ac::AttendInputs inputs{ac::TensorRef::Fp32(q, {kTokens, kHeads, kDim}),
                                ac::TensorRef::Fp32(k, {kTokens, kKvHeads, kDim}),
                                ac::TensorRef::Fp32(v, {kTokens, kKvHeads, kDim})};
  const auto result = (*client)->Attend(inputs, {.causal = true, .return_lse = true});
  if (!result.ok()) {
    const ac::ErrorDetails details = ac::DetailsOf(result.status());
    std::fprintf(stderr, "%s (field \"%s\", request %s)\n", result.status().ToString().c_str(),
                 details.field.c_str(), details.request_id.c_str());
    return 1;
  }
  // The first token sees itself alone: its output is its value.
  const std::span<const float> o = result->o.values<float>();
  for (int64_t h = 0; h < kHeads; ++h) {
    for (int64_t d = 0; d < kDim; ++d) {
      const float want = v[static_cast<size_t>(h / (kHeads / kKvHeads) * kDim + d)];
      if (!(std::abs(o[static_cast<size_t>(h * kDim + d)] - want) <= 1e-5f * std::abs(want))) {
        std::fprintf(stderr, "head %d: a wrong answer\n", static_cast<int>(h));
        return 1;
      }
    }
  }
  std::printf("%lld x %lld x %lld outputs in %.3f ms on %s\n", static_cast<long long>(kTokens),
              static_cast<long long>(kHeads), static_cast<long long>(kDim),
              result->stats.total_seconds * 1e3, result->stats.backend.c_str());
  return 0;
}
