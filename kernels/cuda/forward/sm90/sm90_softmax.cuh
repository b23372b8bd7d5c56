// Online softmax of the two rows that a thread shares with its quad.
//
// The running maximum may lag behind the true one by kMaxLag (log2 units): probabilities are then
// up to 2^kMaxLag, and sums and outputs carry the same factor, which cancels at the end. A row's
// maximum only ever takes the value of a true maximum, so that the result does not depend on how
// often it was refreshed beyond rounding, and starts at -infinity. Shift is what the exponential
// subtracts: exponent_scale * maximum, and 0 while nothing was visible (never infinity - infinity).
//
// Method: Milakov & Gimelshein, "Online normalizer calculation for softmax" (2018); skipping
// rescales below a threshold as in FlashAttention-4 (2025); own: starting from the stale maximum.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_SOFTMAX_CUH_
#define ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_SOFTMAX_CUH_

#include <cstdint>

#include "kernels/cuda/forward/sm90/sm90_config.h"
#include "kernels/cuda/forward/sm90/sm90_ptx.cuh"
#include "kernels/cuda/forward/sm90/sm90_wgmma.cuh"

namespace attend::cuda::sm90 {

struct RowState {
  float max_a, max_b;      // in units of the scores
  float shift_a, shift_b;  // -exponent_scale * max
  float sum_a, sum_b;      // this thread's columns only; the quad's are added at the end

  ATTEND_DEVICE void Reset() {
    max_a = max_b = NegativeInfinity();
    shift_a = shift_b = 0.0f;
    sum_a = sum_b = 0.0f;
  }
};

// What O must be multiplied by before this block's probabilities are added to it.
struct Rescale {
  float a, b;
};

ATTEND_DEVICE float QuadMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}
ATTEND_DEVICE int32_t QuadMax(int32_t x) {
  x = max(x, __shfl_xor_sync(kAllLanes, x, 1));
  return max(x, __shfl_xor_sync(kAllLanes, x, 2));
}
ATTEND_DEVICE float QuadSum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

// Largest scores of this thread in rows A and B; NaN is passed over.
template <int kCount>
ATTEND_DEVICE void ThreadMax(const float (&scores)[kCount], float* max_a, float* max_b) {
  // Two chains each: one is bound by latency.
  float a[2], b[2];
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    a[q] = fmaxf(scores[4 * q], scores[4 * q + 1]);
    b[q] = fmaxf(scores[4 * q + 2], scores[4 * q + 3]);
  }
#pragma unroll
  for (int i = 2; i < kCount / 4; ++i) {
    const int q = i & 1;
    a[q] = fmaxf(a[q], scores[4 * i]);
    b[q] = fmaxf(b[q], scores[4 * i + 2]);
    a[q] = fmaxf(a[q], scores[4 * i + 1]);
    b[q] = fmaxf(b[q], scores[4 * i + 3]);
  }
  *max_a = fmaxf(a[0], a[1]);
  *max_b = fmaxf(b[0], b[1]);
}

// The same as integers, three at a time in one instruction. The order of signed integers is that of
// floats among numbers >= 0, and any of those beats any negative one: right when the result is >=
// 0.
template <int kCount>
ATTEND_DEVICE void ThreadMaxBits(const float (&scores)[kCount], int32_t* max_a, int32_t* max_b) {
  int32_t a[2], b[2];
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    a[q] = max(__float_as_int(scores[4 * q]), __float_as_int(scores[4 * q + 1]));
    b[q] = max(__float_as_int(scores[4 * q + 2]), __float_as_int(scores[4 * q + 3]));
  }
#pragma unroll
  for (int i = 2; i < kCount / 4; ++i) {
    const int q = i & 1;
    a[q] = __vimax3_s32(a[q], __float_as_int(scores[4 * i]), __float_as_int(scores[4 * i + 1]));
    b[q] = __vimax3_s32(b[q], __float_as_int(scores[4 * i + 2]), __float_as_int(scores[4 * i + 3]));
  }
  *max_a = max(a[0], a[1]);
  *max_b = max(b[0], b[1]);
}

// Whether a maximum rose by more than one in log2: where that happens after a failed start it tends
// to happen again, and the next block looks at its maximum first. Uniform over the warp.
ATTEND_DEVICE bool Rises(const Rescale& rescale) {
  return __any_sync(kAllLanes, (rescale.a < 0.5f) | (rescale.b < 0.5f)) != 0;
}

// Takes the rows' true maxima (whole rows, uniform over the quad) into the state.
ATTEND_DEVICE Rescale RaiseMax(RowState& state, float row_a, float row_b, float exponent_scale) {
  const float a = fmaxf(state.max_a, row_a), b = fmaxf(state.max_b, row_b);
  const float safe_a = a == NegativeInfinity() ? 0.0f : a;
  const float safe_b = b == NegativeInfinity() ? 0.0f : b;
  // From -infinity this is 0: nothing had been added yet.
  const Rescale rescale{Exp2((state.max_a - safe_a) * exponent_scale),
                        Exp2((state.max_b - safe_b) * exponent_scale)};
  state.max_a = a;
  state.max_b = b;
  state.shift_a = -safe_a * exponent_scale;
  state.shift_b = -safe_b * exponent_scale;
  state.sum_a *= rescale.a;
  state.sum_b *= rescale.b;
  return rescale;
}

// likely_negative: some row's maximum probably is (rows that see few keys), so that integers would
// be tried in vain.
template <int kCount>
ATTEND_DEVICE Rescale RaiseMaxTo(RowState& state, const float (&scores)[kCount],
                                 float exponent_scale, bool likely_negative) {
  float a, b;
  bool negative = true;
  if (!likely_negative) {
    int32_t bits_a, bits_b;
    ThreadMaxBits(scores, &bits_a, &bits_b);
    bits_a = QuadMax(bits_a);
    bits_b = QuadMax(bits_b);
    negative = __any_sync(kAllLanes, (bits_a | bits_b) < 0) != 0;
    a = __int_as_float(bits_a);
    b = __int_as_float(bits_b);
  }
  if (negative) {
    ThreadMax(scores, &a, &b);
    a = QuadMax(a);
    b = QuadMax(b);
  }
  return RaiseMax(state, a, b, exponent_scale);
}

// After a maximum rose: whether those of the warp are too large for the fused form. If so, the
// shifts are 0 and scores must go through SubtractMax first. Uniform over the warp.
ATTEND_DEVICE bool TooLargeToFuse(RowState& state) {
  const bool large = __any_sync(kAllLanes, (fabsf(state.shift_a) > kLargeShift) |
                                               (fabsf(state.shift_b) > kLargeShift)) != 0;
  if (large) state.shift_a = state.shift_b = 0.0f;
  return large;
}

template <int kCount>
ATTEND_DEVICE void SubtractMax(const RowState& state, float (&scores)[kCount]) {
  const float a = state.max_a == NegativeInfinity() ? 0.0f : state.max_a;
  const float b = state.max_b == NegativeInfinity() ? 0.0f : state.max_b;
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) {
    scores[4 * i] -= a;
    scores[4 * i + 1] -= a;
    scores[4 * i + 2] -= b;
    scores[4 * i + 3] -= b;
  }
}

// Lazy policy: true in every lane when some score of the warp passes its row's maximum by kMaxLag.
template <int kCount>
ATTEND_DEVICE bool MaxExceeded(const RowState& state, const float (&scores)[kCount], float lag) {
  int32_t a, b;
  ThreadMaxBits(scores, &a, &b);
  const float limit_a = state.max_a + lag, limit_b = state.max_b + lag;
  // Below 0 the integers' order is not the floats'.
  return __any_sync(kAllLanes, (a > __float_as_int(limit_a)) | (b > __float_as_int(limit_b)) |
                                   (limit_a < 0.0f) | (limit_b < 0.0f)) != 0;
}

// Scores become probabilities in place.
template <int kCount>
ATTEND_DEVICE void Exponentials(RowState& state, float (&scores)[kCount], float exponent_scale) {
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      float& x = scores[4 * i + e];
      x = Exp2(fmaf(x, exponent_scale, e < 2 ? state.shift_a : state.shift_b));
      sum[e] += x;
    }
  }
  state.sum_a += sum[0] + sum[1];
  state.sum_b += sum[2] + sum[3];
}

// Scores become probabilities in place, packed: pair i, as bits, in scores[i] for i < kCount / 2.
// The registers behind are free from then on.
template <class T, int kCount>
ATTEND_DEVICE void ExponentialsPacked(RowState& state, float (&scores)[kCount],
                                      float exponent_scale) {
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) {
    float x[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      x[e] = Exp2(fmaf(scores[4 * i + e], exponent_scale, e < 2 ? state.shift_a : state.shift_b));
      sum[e] += x[e];
    }
    scores[2 * i] = __uint_as_float(Pack<T>(x[0], x[1]));
    scores[2 * i + 1] = __uint_as_float(Pack<T>(x[2], x[3]));
  }
  state.sum_a += sum[0] + sum[1];
  state.sum_b += sum[2] + sum[3];
}

// Scores stay; their probabilities go to `packed`, their sums to `sum`.
template <class T, int kCount>
ATTEND_DEVICE void ExponentialsTo(const RowState& state, const float (&scores)[kCount],
                                  uint32_t (&packed)[kCount / 2], float exponent_scale,
                                  float* sum_a, float* sum_b) {
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) {
    float x[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      x[e] = Exp2(fmaf(scores[4 * i + e], exponent_scale, e < 2 ? state.shift_a : state.shift_b));
      sum[e] += x[e];
    }
    packed[2 * i] = Pack<T>(x[0], x[1]);
    packed[2 * i + 1] = Pack<T>(x[2], x[3]);
  }
  *sum_a = sum[0] + sum[1];
  *sum_b = sum[2] + sum[3];
}

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_SOFTMAX_CUH_
