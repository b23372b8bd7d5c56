// Plain code: one block a row. Written without the fused kernels' pieces, to be compared with them.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "kernels/cuda/unfused/unfused_kernels.h"

namespace attend::cuda::unfused {
namespace {

constexpr int kThreads = 256;

// Rows are dealt out over a grid of at most this many blocks, each looping.
constexpr int64_t kMaxBlocks = 1 << 20;

__device__ float NegativeInfinity() { return -__int_as_float(0x7f800000); }

template <typename T>
__device__ float ToFloat(T x) {
  return static_cast<float>(x);
}

// Keys [begin, end) that the mask leaves to a query.
struct Keys {
  int64_t begin, end;
};
__device__ Keys VisibleKeys(const DeviceTask& task, int64_t query) {
  const int64_t position = query + task.seqlen_k - task.seqlen_q;
  const int64_t begin = max(int64_t{0}, position - task.window_left);
  const int64_t end = min(task.seqlen_k, position + task.window_right + 1);
  return {begin, max(begin, end)};
}

template <typename T>
__device__ float BiasAt(const DeviceTask& task, int64_t head, int64_t query, int64_t key) {
  const int64_t at = head * task.bias_head_stride + query * task.bias_row_stride + key;
  if (task.bias_element == Element::kF32) return static_cast<const float*>(task.bias)[at];
  return ToFloat(static_cast<const T*>(task.bias)[at]);
}

template <typename T>
__device__ float Score(const DeviceTask& task, float product, int64_t head, int64_t query,
                       int64_t key) {
  float score = product * task.softmax_scale;
  if (task.softcap > 0.0f) score = task.softcap * tanhf(score / task.softcap);
  if (task.bias != nullptr) {
    const float bias = BiasAt<T>(task, head, query, key);
    // A masked key stays hidden even when its score is NaN.
    score = bias == NegativeInfinity() ? bias : score + bias;
  }
  if (task.alibi_slopes != nullptr) {
    const int64_t distance = query + task.seqlen_k - task.seqlen_q - key;
    score -= task.alibi_slopes[head] * static_cast<float>(distance < 0 ? -distance : distance);
  }
  return score;
}

// Over the block; every thread gets the result.
template <typename Operation>
__device__ float Reduce(float x, Operation operation) {
  __shared__ float values[kThreads];
  values[threadIdx.x] = x;
  __syncthreads();
  for (int width = kThreads / 2; width > 0; width /= 2) {
    if (threadIdx.x < width) {
      values[threadIdx.x] = operation(values[threadIdx.x], values[threadIdx.x + width]);
    }
    __syncthreads();
  }
  const float result = values[0];
  __syncthreads();
  return result;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) CleanValues(StepParams p) {
  const DeviceTask& task = p.task;
  const int64_t elements = task.seqlen_k * task.heads_k * task.head_dim_v;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < elements;
       i += step) {
    const int64_t column = i % task.head_dim_v;
    const int64_t head = i / task.head_dim_v % task.heads_k;
    const int64_t row = i / task.head_dim_v / task.heads_k;
    T x =
        static_cast<const T*>(task.v)[row * task.v_row_stride + head * task.v_head_stride + column];
    if (!isfinite(ToFloat(x))) {
      x = static_cast<T>(0.0f);
      *p.found = 1;
    }
    static_cast<T*>(p.values)[i] = x;
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) Softmax(StepParams p) {
  const DeviceTask& task = p.task;
  const auto larger = [](float a, float b) { return fmaxf(a, b); };
  const auto sum = [](float a, float b) { return a + b; };
  const int64_t rows = task.heads_q * task.seqlen_q;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int64_t head = row / task.seqlen_q;
    const int64_t query = row % task.seqlen_q;
    const float* const scores = p.scores + row * task.seqlen_k;
    T* const probabilities = static_cast<T*>(p.probabilities) + row * task.seqlen_k;
    const Keys keys = VisibleKeys(task, query);
    const float sink = task.sinks == nullptr ? NegativeInfinity() : task.sinks[head];

    float top = NegativeInfinity();
    for (int64_t key = keys.begin + threadIdx.x; key < keys.end; key += kThreads) {
      top = fmaxf(top, Score<T>(task, scores[key], head, query, key));
    }
    top = Reduce(top, larger);
    const bool empty = top == NegativeInfinity();
    if (!empty) top = fmaxf(top, sink);
    float total = 0.0f;
    for (int64_t key = keys.begin + threadIdx.x; key < keys.end; key += kThreads) {
      const float score = Score<T>(task, scores[key], head, query, key);
      // NaN scores are not seen by the maximum but must reach the row.
      total += empty && score == NegativeInfinity() ? 0.0f : expf(score - (empty ? 0.0f : top));
    }
    total = Reduce(total, sum);
    const bool sees_nothing = total == 0.0f;
    if (!sees_nothing && sink != NegativeInfinity()) total += expf(sink - (empty ? 0.0f : top));
    const float factor = sees_nothing ? 0.0f : 1.0f / total;
    for (int64_t key = threadIdx.x; key < task.seqlen_k; key += kThreads) {
      float x = 0.0f;
      if (key >= keys.begin && key < keys.end && !sees_nothing) {
        x = expf(Score<T>(task, scores[key], head, query, key) - (empty ? 0.0f : top)) * factor;
      }
      probabilities[key] = static_cast<T>(x);
    }
    if (threadIdx.x == 0 && task.lse != nullptr) {
      task.lse[head * task.lse_head_stride + query] =
          sees_nothing ? sink : (empty ? 0.0f : top) + logf(total);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) Finish(StepParams p) {
  const DeviceTask& task = p.task;
  const bool found = task.seqlen_k > 0 && *p.found != 0;
  const int64_t rows = task.heads_q * task.padded_q;
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    const int64_t head = row / task.padded_q;
    const int64_t query = row % task.padded_q;
    T* const o = static_cast<T*>(task.o) + query * task.o_row_stride + head * task.o_head_stride;
    const bool padded = query >= task.seqlen_q;
    if (padded || task.seqlen_k == 0) {
      for (int column = threadIdx.x; column < task.head_dim_v; column += kThreads) {
        o[column] = static_cast<T>(0.0f);
      }
      if (threadIdx.x == 0 && task.lse != nullptr) {
        const bool sink = !padded && task.sinks != nullptr;
        task.lse[head * task.lse_head_stride + query] =
            sink ? task.sinks[head] : NegativeInfinity();
      }
      continue;
    }
    if (!found) continue;
    const Keys keys = VisibleKeys(task, query);
    const T* const v =
        static_cast<const T*>(task.v) + head / (task.heads_q / task.heads_k) * task.v_head_stride;
    for (int column = threadIdx.x; column < task.head_dim_v; column += kThreads) {
      for (int64_t key = keys.begin; key < keys.end; ++key) {
        if (isfinite(ToFloat(v[key * task.v_row_stride + column]))) continue;
        if (task.bias != nullptr && BiasAt<T>(task, head, query, key) == NegativeInfinity()) {
          continue;
        }
        o[column] = static_cast<T>(__int_as_float(0x7fffffff));
        break;
      }
    }
  }
}

// Calls `launch` with the element's type.
template <typename Launch>
cudaError_t WithType(Element element, int64_t work, Launch launch) {
  if (work == 0) return cudaSuccess;
  const unsigned blocks = static_cast<unsigned>(std::min(work, kMaxBlocks));
  switch (element) {
    case Element::kF32:
      launch(float{}, blocks);
      break;
    case Element::kF16:
      launch(__half{}, blocks);
      break;
    case Element::kBF16:
      launch(__nv_bfloat16{}, blocks);
      break;
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t LaunchCleanValues(const StepParams& p, cudaStream_t stream) {
  const int64_t elements = p.task.seqlen_k * p.task.heads_k * p.task.head_dim_v;
  if (elements == 0) return cudaSuccess;
  if (const cudaError_t error = cudaMemsetAsync(p.found, 0, sizeof(int), stream);
      error != cudaSuccess) {
    return error;
  }
  return WithType(
      p.task.element, (elements + kThreads - 1) / kThreads,
      [&]<typename T>(T, unsigned blocks) { CleanValues<T><<<blocks, kThreads, 0, stream>>>(p); });
}

cudaError_t LaunchSoftmax(const StepParams& p, cudaStream_t stream) {
  return WithType(
      p.task.element, p.task.heads_q * p.task.seqlen_q,
      [&]<typename T>(T, unsigned blocks) { Softmax<T><<<blocks, kThreads, 0, stream>>>(p); });
}

cudaError_t LaunchFinish(const StepParams& p, cudaStream_t stream) {
  return WithType(
      p.task.element, p.task.heads_q * p.task.padded_q,
      [&]<typename T>(T, unsigned blocks) { Finish<T><<<blocks, kThreads, 0, stream>>>(p); });
}

}  // namespace attend::cuda::unfused
