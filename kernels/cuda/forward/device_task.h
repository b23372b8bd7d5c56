// One attention task as the device sees it: plain data, device pointers only.
//
// Included by device code, so it knows nothing of absl. The executor fills it from an AttentionTask
// after it has placed every tensor on the device.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_DEVICE_TASK_H_
#define ATTEND_KERNELS_CUDA_FORWARD_DEVICE_TASK_H_

#include <cstdint>

namespace attend::cuda {

enum class Element : int32_t { kF32, kF16, kBF16 };

// Strides count elements. Tensors are [rows, heads, columns] with contiguous columns.
struct DeviceTask {
  const void* q;
  const void* k;
  const void* v;
  void* o;
  float* lse;                 // [heads_q, padded_q]; null: not wanted
  const void* bias;           // null: none
  const float* alibi_slopes;  // [heads_q]; null: none
  const float* sinks;         // [heads_q]; null: none

  int64_t q_row_stride, q_head_stride;
  int64_t k_row_stride, k_head_stride;
  int64_t v_row_stride, v_head_stride;
  int64_t o_row_stride, o_head_stride;
  int64_t lse_head_stride;
  int64_t bias_row_stride, bias_head_stride;  // 0 broadcasts

  int64_t seqlen_q, seqlen_k;  // real rows
  int64_t padded_q;            // rows of o to write; those past seqlen_q become 0, their lse -inf
  // Key j is visible to query i when pos - window_left <= j <= pos + window_right, with
  // pos = i + seqlen_k - seqlen_q. Unbounded is kUnbounded; causal is folded into window_right.
  int64_t window_left, window_right;

  int32_t heads_q, heads_k;
  int32_t head_dim, head_dim_v;
  Element element;
  Element bias_element;
  float softmax_scale;
  float softcap;  // 0: off
};

// Large, yet safe to add to and subtract from any sequence position.
inline constexpr int64_t kUnbounded = int64_t{1} << 60;

}  // namespace attend::cuda

#endif  // ATTEND_KERNELS_CUDA_FORWARD_DEVICE_TASK_H_
