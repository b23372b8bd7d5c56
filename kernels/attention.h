// The vocabulary of attention: what every backend receives and what every caller speaks.
//
// One AttentionTask is the attention of one sequence. A padded or ragged batch is many tasks whose
// views point into the same tensors, so nothing is copied to make a batch.
//
// All types here are plain values. Views own nothing: whoever made the memory keeps it alive until
// the call that uses the view has returned. Thread rule: immutable once handed over.

#ifndef ATTEND_KERNELS_ATTENTION_H_
#define ATTEND_KERNELS_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/status/status.h"

namespace attend {

enum class DType : uint8_t { kF32, kF16, kBF16 };
inline constexpr int kDTypeCount = 3;

// Bytes of one element.
constexpr int64_t ByteSize(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }
// "fp32", "fp16" or "bf16": the names used in flags, labels and messages.
std::string_view Name(DType dtype);

// Where the bytes of a view live.
enum class MemoryKind : uint8_t {
  kHost,    // pageable
  kPinned,  // page-locked: the device may copy from it without staging
  kDevice,  // the memory of the device that will run the task
};

// One tensor of one sequence, [rows, heads, columns]. Columns are contiguous; strides count
// elements. `data` may be null only when rows, heads or columns is 0, or for an output that is not
// wanted (TensorView::absent()).
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  MemoryKind memory = MemoryKind::kHost;
  int64_t rows = 0;
  int64_t heads = 0;
  int64_t columns = 0;
  int64_t row_stride = 0;   // heads * columns when contiguous
  int64_t head_stride = 0;  // columns when contiguous

  bool absent() const { return data == nullptr; }

  // A contiguous, row-major view.
  static TensorView Contiguous(void* data, DType dtype, MemoryKind memory, int64_t rows,
                               int64_t heads, int64_t columns);
};

// Log-sum-exp of one sequence, fp32 [heads, rows]: element (h, i) is data[h * head_stride + i].
struct LseView {
  float* data = nullptr;  // null: not wanted
  MemoryKind memory = MemoryKind::kHost;
  int64_t head_stride = 0;

  bool absent() const { return data == nullptr; }
};

// Additive bias of one sequence: element (h, i, j) is data[h * head_stride + i * row_stride + j].
// A stride of 0 broadcasts. dtype is fp32 or the inputs' dtype.
struct BiasView {
  const void* data = nullptr;  // null: none
  DType dtype = DType::kF32;
  MemoryKind memory = MemoryKind::kHost;
  int64_t head_stride = 0;
  int64_t row_stride = 0;

  bool absent() const { return data == nullptr; }
};

// fp32 [heads_q]; null: none.
struct HeadVector {
  const float* data = nullptr;
  MemoryKind memory = MemoryKind::kHost;

  bool absent() const { return data == nullptr; }
};

// Which keys a query may see. Alignment is bottom-right: query i stands at key position
// i + seqlen_k - seqlen_q. An absent bound is unbounded; 0 is a bound.
struct MaskSpec {
  bool causal = false;
  std::optional<int64_t> window_left;   // keys at or after position - window_left
  std::optional<int64_t> window_right;  // keys at or before position + window_right
};

// Keys [begin, end) that query row `row` may see, already clipped to [0, seqlen_k); begin == end
// when it sees none. 64-bit throughout and safe for bounds up to INT64_MAX.
struct KeyRange {
  int64_t begin = 0;
  int64_t end = 0;
};
KeyRange VisibleKeys(const MaskSpec& mask, int64_t row, int64_t seqlen_q, int64_t seqlen_k);

// The forward attention of one sequence.
//
// q [padded_q, heads_q, head_dim], k [padded_k, heads_k, head_dim], v [padded_k, heads_k,
// head_dim_v], o [padded_q, heads_q, head_dim_v], where padded_* is the view's `rows`. The first
// seqlen_q and seqlen_k rows are real. Rows of o past seqlen_q are written as 0 and their lse as
// -infinity; rows of k and v past seqlen_k are never read into any result.
struct AttentionTask {
  TensorView q, k, v;
  TensorView o;
  LseView lse;
  int64_t seqlen_q = 0;
  int64_t seqlen_k = 0;
  float softmax_scale = 1.0f;  // any finite value, 0 and negative included
  float softcap = 0.0f;        // 0: off; otherwise finite and > 0
  MaskSpec mask;
  BiasView bias;
  HeadVector alibi_slopes;  // [heads_q]
  HeadVector sinks;         // [heads_q], natural-log units

  int64_t heads_q() const { return q.heads; }
  int64_t heads_k() const { return k.heads; }
  int64_t head_dim() const { return q.columns; }
  int64_t head_dim_v() const { return v.columns; }
  int64_t padded_q() const { return q.rows; }
  DType dtype() const { return q.dtype; }
};

inline constexpr int64_t kMaxHeadDim = 256;

// Checks a task against the contract: shapes that agree, dtypes, 1 <= head_dim <= 256, heads_q a
// multiple of heads_k, lengths within their padded rows, finite scale and softcap, non-negative
// window bounds, products that fit 64 bits. INVALID_ARGUMENT names the field and both values.
// Says nothing about what a backend supports (Backend::Supports does).
absl::Status Validate(const AttentionTask& task);

// Exact number of visible (query, key) pairs of one head, in O(1); bias is not counted as a mask.
int64_t VisiblePairs(const MaskSpec& mask, int64_t seqlen_q, int64_t seqlen_k);

// Useful floating-point operations: 2 * (head_dim + head_dim_v) for each visible pair and head. A
// double, since sums over a day of traffic pass 2^63.
double Flops(const AttentionTask& task);

// Bytes of the score matrix (one element of the inputs' dtype for each head, query and key) that
// an unfused implementation would have written. Saturates at INT64_MAX.
int64_t ScoreMatrixBytes(const AttentionTask& task);

// a * b and a + b, or nullopt when the result does not fit (or an operand is negative).
std::optional<int64_t> CheckedMultiply(int64_t a, int64_t b);
std::optional<int64_t> CheckedAdd(int64_t a, int64_t b);

}  // namespace attend

#endif  // ATTEND_KERNELS_ATTENTION_H_
