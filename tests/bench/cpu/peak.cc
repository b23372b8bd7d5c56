#include "tests/bench/cpu/peak.h"

#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace attend::bench {
namespace {

#if defined(__x86_64__)

constexpr int kSums = 12;  // enough to hide a latency of 4 or 5 at two a cycle
constexpr int kSteps = 4096;

// One function an instruction set: kSteps multiply-adds into each of kSums registers. Returns
// something that depends on all of them. Sums start apart, lest the compiler keep one for all.

__attribute__((target("sse4.2"))) float Sse4Steps() {
  __m128 c[kSums];
#pragma GCC unroll 16
  for (int j = 0; j < kSums; ++j) c[j] = _mm_set1_ps(static_cast<float>(j));
  __m128 x = _mm_set1_ps(0.5f);
  for (int i = 0; i < kSteps; ++i) {
    asm volatile("" : "+x"(x));
#pragma GCC unroll 16
    for (int j = 0; j < kSums; ++j) c[j] = _mm_add_ps(_mm_mul_ps(x, x), c[j]);
  }
  for (int j = 1; j < kSums; ++j) c[0] = _mm_add_ps(c[0], c[j]);
  return _mm_cvtss_f32(c[0]);
}

__attribute__((target("avx2,fma"))) float Avx2Steps() {
  __m256 c[kSums];
#pragma GCC unroll 16
  for (int j = 0; j < kSums; ++j) c[j] = _mm256_set1_ps(static_cast<float>(j));
  __m256 x = _mm256_set1_ps(0.5f);
  for (int i = 0; i < kSteps; ++i) {
    asm volatile("" : "+x"(x));
#pragma GCC unroll 16
    for (int j = 0; j < kSums; ++j) c[j] = _mm256_fmadd_ps(x, x, c[j]);
  }
  for (int j = 1; j < kSums; ++j) c[0] = _mm256_add_ps(c[0], c[j]);
  return _mm256_cvtss_f32(c[0]);
}

__attribute__((target("avx512f"))) float Avx512Steps() {
  __m512 c[kSums];
#pragma GCC unroll 16
  for (int j = 0; j < kSums; ++j) c[j] = _mm512_set1_ps(static_cast<float>(j));
  __m512 x = _mm512_set1_ps(0.5f);
  for (int i = 0; i < kSteps; ++i) {
    asm volatile("" : "+v"(x));
#pragma GCC unroll 16
    for (int j = 0; j < kSums; ++j) c[j] = _mm512_fmadd_ps(x, x, c[j]);
  }
  for (int j = 1; j < kSums; ++j) c[0] = _mm512_add_ps(c[0], c[j]);
  return _mm512_cvtss_f32(c[0]);
}

__attribute__((target("avx512f,avx512bf16"))) float PairSteps() {
  __m512 c[kSums];
#pragma GCC unroll 16
  for (int j = 0; j < kSums; ++j) c[j] = _mm512_set1_ps(static_cast<float>(j));
  __m512i x = _mm512_set1_epi32(0x3f003f00);
  for (int i = 0; i < kSteps; ++i) {
    asm volatile("" : "+v"(x));
#pragma GCC unroll 16
    for (int j = 0; j < kSums; ++j) c[j] = _mm512_dpbf16_ps(c[j], (__m512bh)x, (__m512bh)x);
  }
  for (int j = 1; j < kSums; ++j) c[0] = _mm512_add_ps(c[0], c[j]);
  return _mm512_cvtss_f32(c[0]);
}

struct Loop {
  float (*steps)();
  int flops_a_step;  // of one sum
};

Loop LoopOf(std::string_view architecture, bool bf16) {
  if (architecture == "sse4" || architecture == "portable") return {Sse4Steps, 2 * 4};
  if (architecture == "avx2") return {Avx2Steps, 2 * 8};
  if (architecture == "avx512_bf16" && bf16) return {PairSteps, 4 * 16};
  if (architecture == "avx512" || architecture == "avx512_bf16") return {Avx512Steps, 2 * 16};
  return {nullptr, 0};
}

#else

struct Loop {
  float (*steps)() = nullptr;
  int flops_a_step = 0;
};
Loop LoopOf(std::string_view, bool) { return {}; }
constexpr int kSums = 0;
constexpr int kSteps = 0;

#endif

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Best rate over short slices, so that an interruption does not count.
double BestRate(const Loop& loop, double seconds) {
  constexpr int kCallsASlice = 50;
  const double end = Seconds() + seconds;
  double best = 0;
  float sink = 0;
  for (double begin = Seconds(); begin < end;) {
    for (int i = 0; i < kCallsASlice; ++i) sink += loop.steps();
    asm volatile("" : : "g"(&sink) : "memory");
    const double now = Seconds();
    const double flops = 1.0 * kCallsASlice * kSteps * kSums * loop.flops_a_step;
    best = flops / (now - begin) > best ? flops / (now - begin) : best;
    begin = now;
  }
  return best;
}

}  // namespace

double MeasurePeak(std::string_view architecture, bool bf16, int threads, double seconds) {
  const Loop loop = LoopOf(architecture, bf16);
  if (loop.steps == nullptr) return 0;
  std::vector<double> rates(static_cast<size_t>(threads));
  std::vector<std::thread> workers;
  workers.reserve(rates.size());
  for (double& rate : rates) {
    workers.emplace_back([&rate, &loop, seconds] { rate = BestRate(loop, seconds); });
  }
  double sum = 0;
  for (std::thread& worker : workers) worker.join();
  for (const double rate : rates) sum += rate;
  return sum;
}

}  // namespace attend::bench
