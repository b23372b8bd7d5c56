// The running softmax of one row, in powers of two, and what the options do to a score.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_SOFTMAX_CUH_
#define ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_SOFTMAX_CUH_

#include <cstdint>

#include "kernels/cuda/forward/sm80/sm80_item.cuh"
#include "kernels/cuda/forward/sm80/sm80_ptx.cuh"

namespace attend::cuda::sm80 {

inline constexpr float kLog2E = 1.4426950408889634f;
inline constexpr float kLn2 = 0.6931471805599453f;
inline constexpr float kLargest = 3.4028235e38f;

__device__ __forceinline__ float NegativeInfinity() { return __int_as_float(0xff800000); }

// `reference` is subtracted from every exponent: the largest score when it was last renewed. It may
// lag behind the true maximum by kLag powers of two, so that the accumulators are rescaled a few
// times a row and not once a block; 2^8 times the row length is far inside every format's range.
inline constexpr float kLag = 8.0f;

struct SoftmaxRow {
  float reference = NegativeInfinity();  // in powers of two
  float sum = 0.0f;                      // of this lane's columns
  // What to subtract: a row that has seen nothing yet must not meet infinity minus infinity.
  __device__ __forceinline__ float Subtrahend() const {
    return reference == NegativeInfinity() ? 0.0f : reference;
  }
  // Takes `maximum` of the scores to come; the factor for what was accumulated so far.
  __device__ __forceinline__ float Renew(float maximum) {
    const float old = reference;
    reference = fmaxf(reference, maximum);
    const float factor = Exp2(old - Subtrahend());
    sum *= factor;
    return factor;
  }
  __device__ __forceinline__ bool Lags(float maximum) const { return maximum > reference + kLag; }
};

// Over the four lanes that hold one row of an accumulator.
__device__ __forceinline__ float QuadMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float QuadSum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// The end of a row: what to multiply its accumulators by, and its log-sum-exp in powers of two (for
// merging) and in natural units.
struct RowResult {
  float factor;
  float lse2;
  float lse;
};
// `sink` is in natural units, -infinity for none.
__device__ __forceinline__ RowResult FinishRow(float reference, float sum, float sink) {
  if (sum == 0.0f) return {0.0f, sink * kLog2E, sink};
  RowResult result;
  const float sink2 = sink * kLog2E;
  if (sink2 == NegativeInfinity()) {
    result.factor = 1.0f / sum;
    result.lse2 = reference + log2f(sum);
  } else {
    const float top = fmaxf(reference, sink2);
    const float shrink = Exp2(reference - top);
    const float total = sum * shrink + Exp2(sink2 - top);
    result.factor = shrink / total;
    result.lse2 = top + log2f(total);
  }
  result.lse = result.lse2 * kLn2;
  return result;
}

// tanh without branches, relative error below 4e-7: a series near 0, where the quotient would
// cancel.
__device__ __forceinline__ float Tanh(float x) {
  const float x2 = x * x;
  float series = fmaf(x2, -1382.0f / 155925.0f, 62.0f / 2835.0f);
  series = fmaf(x2, series, -17.0f / 315.0f);
  series = fmaf(x2, series, 2.0f / 15.0f);
  series = fmaf(x2, series, -1.0f / 3.0f);
  series = fmaf(x2 * x, series, x);
  const float e = Exp2(fabsf(x) * (2.0f * kLog2E));
  const float quotient = copysignf(1.0f - __fdividef(2.0f, e + 1.0f), x);
  // Past 2^126 the fast quotient is 0 as it should be, and NaN stays NaN in either.
  return fabsf(x) < 0.35f ? series : quotient;
}

// What the options do to the scores of one row. Used where a task has a softcap, a bias, ALiBi
// slopes, or a scale that cannot be folded into the exponent.
template <typename T>
class ScoreOptions {
 public:
  __device__ __forceinline__ ScoreOptions(const Item& item, const QueryOfRow& row) {
    const DeviceTask& t = item.params->task;
    const int head = item.head_q + row.head;
    // Bounded, so that a score of 0 stays 0 under the tiniest softcap.
    scale_ = t.softcap > 0.0f ? fminf(fmaxf(t.softmax_scale / t.softcap, -kLargest), kLargest)
                              : t.softmax_scale * kLog2E;
    cap_ = t.softcap * kLog2E;
    slope_ = t.alibi_slopes != nullptr ? t.alibi_slopes[head] * kLog2E : 0.0f;
    position_ = row.query + t.seqlen_k - t.seqlen_q;
    const int64_t offset = head * t.bias_head_stride + row.query * t.bias_row_stride;
    wide_bias_ = t.bias_element == Element::kF32;
    bias_ = t.bias == nullptr ? nullptr
                              : static_cast<const char*>(t.bias) +
                                    offset * (wide_bias_ ? 4 : static_cast<int>(sizeof(T)));
  }
  // The score of `key` in powers of two. REQUIRES: the key exists.
  __device__ __forceinline__ float Apply(float product, int64_t key) const {
    float score = product * scale_;
    if (cap_ > 0.0f) score = cap_ * Tanh(score);
    if (bias_ != nullptr) {
      const float bias = Bias(key);
      // A masked key stays hidden even when its score is NaN.
      score = bias == NegativeInfinity() ? bias : fmaf(bias, kLog2E, score);
    }
    return fmaf(-slope_, fabsf(static_cast<float>(position_ - key)), score);
  }
  // REQUIRES: there is a bias and the key exists.
  __device__ __forceinline__ float Bias(int64_t key) const {
    return wide_bias_ ? reinterpret_cast<const float*>(bias_)[key]
                      : static_cast<float>(reinterpret_cast<const T*>(bias_)[key]);
  }

 private:
  const char* bias_;
  int64_t position_;
  float scale_, cap_, slope_;
  bool wide_bias_;
};

// Scores of one 16-row accumulator block after options and mask: rows `row` and `row` + 8 (of the
// item; a lane's own), keys origin + key + 8 n + 2 (lane % 4) + {0, 1}. In powers of two when
// kOptions, else the bare products.
template <typename T, bool kOptions, int kKeyTiles>
__device__ __forceinline__ void MaskScores(const Item& item, int row, int64_t key,
                                           float (&s)[kKeyTiles][4]) {
  const int64_t lane_key = key + 2 * (threadIdx.x % 4);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t r = item.first_row + min(row + half * 8, item.rows - 1);
    const QueryOfRow query = FindQuery(r, item.params->group);
    const RowKeys keys = KeysOfQuery(item, query.query, lane_key);
    if constexpr (kOptions) {
      const ScoreOptions<T> options(item, query);
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s[n][2 * half + e];
          const int at = n * 8 + e;
          x = at >= keys.begin && at < keys.end ? options.Apply(x, lane_key + at)
                                                : NegativeInfinity();
        }
      }
    } else {
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int at = n * 8 + e;
          if (at < keys.begin || at >= keys.end) s[n][2 * half + e] = NegativeInfinity();
        }
      }
    }
  }
}

// The two rows that a lane holds of a 16-row block.
struct SoftmaxRows {
  SoftmaxRow row[2];
  // Some reference of the warp is so large that the exact product inside a fused multiply-add may
  // differ from the rounded one in the reference by more than kLag.
  bool large = false;
};
inline constexpr float kLargeReference = 16777216.0f;  // 2^24: up to it they differ by 1 at most

// Scores to probabilities, in place, for one 16-row block; renews the references, and rescales
// `o`, only when one of them lags too far. `scale` turns scores into powers of two.
template <int kKeyTiles, int kColumnTiles>
__device__ __forceinline__ void SoftmaxStep(float scale, SoftmaxRows& rows,
                                            float (&s)[kKeyTiles][4], float (&o)[kColumnTiles][4]) {
  float maxima[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float top = fmaxf(s[0][2 * half], s[0][2 * half + 1]);
#pragma unroll
    for (int n = 1; n < kKeyTiles; ++n) {
      top = fmaxf(top, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    }
    maxima[half] = QuadMax(top) * scale;
  }
  if (__any_sync(0xffffffffu, rows.row[0].Lags(maxima[0]) || rows.row[1].Lags(maxima[1]))) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float factor = rows.row[half].Renew(maxima[half]);
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        o[n][2 * half] *= factor;
        o[n][2 * half + 1] *= factor;
      }
    }
    rows.large = __any_sync(0xffffffffu, fabsf(rows.row[0].Subtrahend()) > kLargeReference ||
                                             fabsf(rows.row[1].Subtrahend()) > kLargeReference);
  }
  if (rows.large) {
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) s[n][e] *= scale;
    }
    scale = 1.0f;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float subtrahend = rows.row[half].Subtrahend();
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[n][2 * half + e];
        x = Exp2(fmaf(x, scale, -subtrahend));
        sum += x;
      }
    }
    rows.row[half].sum += sum;
  }
}

}  // namespace attend::cuda::sm80

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_SOFTMAX_CUH_
