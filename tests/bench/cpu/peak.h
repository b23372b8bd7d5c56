// The machine's own peak, measured: loops of independent multiply-adds in registers.

#ifndef ATTEND_TESTS_BENCH_CPU_PEAK_H_
#define ATTEND_TESTS_BENCH_CPU_PEAK_H_

#include <string_view>

namespace attend::bench {

// FLOP/s of `threads` threads for about `seconds` each, with the instructions that the backend uses
// on `architecture` ("sse4", "avx2", "avx512", "avx512_bf16"). bf16: pair products where the
// architecture has them. 0 when the architecture is not known.
double MeasurePeak(std::string_view architecture, bool bf16, int threads, double seconds);

}  // namespace attend::bench

#endif  // ATTEND_TESTS_BENCH_CPU_PEAK_H_
