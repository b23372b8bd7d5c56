#include "kernels/unfused/unfused_attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>

#include "absl/strings/str_cat.h"
#include "kernels/unfused/products.h"
#include "oneapi/tbb/blocked_range2d.h"
#include "oneapi/tbb/parallel_for.h"

namespace attend::unfused {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kRowBlock = 48;  // rows of one piece of work: eight tiles of the product

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

const std::byte* RowOf(const TensorView& view, int64_t row, int64_t head) {
  return static_cast<const std::byte*>(view.data) +
         (row * view.row_stride + head * view.head_stride) * ByteSize(view.dtype);
}

std::byte* MutableRowOf(const TensorView& view, int64_t row, int64_t head) {
  return static_cast<std::byte*>(view.data) +
         (row * view.row_stride + head * view.head_stride) * ByteSize(view.dtype);
}

// Rows of one head as contiguous floats.
void GatherRows(const TensorView& view, int64_t head, int64_t first, int64_t rows, float* out) {
  for (int64_t i = 0; i < rows; ++i) {
    ToFloats(RowOf(view, first + i, head), view.dtype, view.columns, out + i * view.columns);
  }
}

// Calls fn(head, first_row, rows) for blocks of the real query rows, in parallel.
template <typename Fn>
void ForRowBlocks(const AttentionTask& task, const Fn& fn) {
  const oneapi::tbb::blocked_range2d<int64_t> blocks(0, task.heads_q(), 1, 0,
                                                     CeilDiv(task.seqlen_q, kRowBlock), 1);
  oneapi::tbb::parallel_for(blocks, [&](const oneapi::tbb::blocked_range2d<int64_t>& part) {
    for (int64_t head = part.rows().begin(); head != part.rows().end(); ++head) {
      for (int64_t block = part.cols().begin(); block != part.cols().end(); ++block) {
        const int64_t first = block * kRowBlock;
        fn(head, first, std::min(kRowBlock, task.seqlen_q - first));
      }
    }
  });
}

float BiasAt(const AttentionTask& task, int64_t head, int64_t row, int64_t key) {
  const int64_t index = head * task.bias.head_stride + row * task.bias.row_stride + key;
  float value;
  ToFloats(static_cast<const std::byte*>(task.bias.data) + index * ByteSize(task.bias.dtype),
           task.bias.dtype, 1, &value);
  return value;
}

// Turns products into scores: scale, softcap, bias, ALiBi, in the contract's order.
void FinishScores(const AttentionTask& task, int64_t head, int64_t row, KeyRange keys,
                  float* scores, float* bias) {
  for (int64_t j = keys.begin; j < keys.end; ++j) scores[j] *= task.softmax_scale;
  if (task.softcap > 0) {
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      scores[j] = task.softcap * std::tanh(scores[j] / task.softcap);
    }
  }
  if (!task.bias.absent()) {
    const int64_t index = head * task.bias.head_stride + row * task.bias.row_stride + keys.begin;
    ToFloats(static_cast<const std::byte*>(task.bias.data) + index * ByteSize(task.bias.dtype),
             task.bias.dtype, keys.end - keys.begin, bias);
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      const float value = bias[j - keys.begin];
      // A masked key stays masked whatever its score is, NaN included.
      scores[j] = value == -kInfinity ? -kInfinity : scores[j] + value;
    }
  }
  if (!task.alibi_slopes.absent()) {
    const float slope = task.alibi_slopes.data[head];
    const int64_t position = row + task.seqlen_k - task.seqlen_q;
    for (int64_t j = keys.begin; j < keys.end; ++j) {
      // Again: -infinity must survive a slope of any sign and size.
      const float distance = slope * static_cast<float>(std::abs(position - j));
      scores[j] = scores[j] == -kInfinity ? -kInfinity : scores[j] - distance;
    }
  }
}

// Softmax of scores[keys], in place; returns the log-sum-exp.
float Softmax(KeyRange keys, float sink, float* scores) {
  float maximum = -kInfinity;
  bool has_nan = false;
  for (int64_t j = keys.begin; j < keys.end; ++j) {
    maximum = std::max(maximum, scores[j]);
    has_nan = has_nan || std::isnan(scores[j]);
  }
  if (has_nan || std::isnan(sink)) maximum = std::numeric_limits<float>::quiet_NaN();
  if (maximum == -kInfinity) {
    std::fill(scores + keys.begin, scores + keys.end, 0.0f);
    return sink;
  }
  const float base = std::isnan(maximum) ? maximum : std::max(maximum, sink);
  const float sum =
      ExpAndSum(scores + keys.begin, keys.end - keys.begin, base) + std::exp(sink - base);
  const float factor = 1 / sum;
  for (int64_t j = keys.begin; j < keys.end; ++j) scores[j] *= factor;
  return base + std::log(sum);
}

}  // namespace

std::optional<int64_t> WorkspaceBytes(const AttentionTask& task) {
  const std::optional<int64_t> scores =
      CheckedMultiply(task.heads_q(), task.seqlen_q * task.seqlen_k);
  if (!scores) return std::nullopt;
  const std::optional<int64_t> matrices = CheckedMultiply(*scores, 4 + ByteSize(task.dtype()));
  // Packed keys and values: their padded columns are at most a panel more.
  const int64_t padded_keys = task.seqlen_k + PanelWidth();
  const std::optional<int64_t> packed = CheckedMultiply(
      padded_keys * 4 * task.heads_k(), task.head_dim() + task.head_dim_v() + PanelWidth());
  return matrices && packed ? CheckedAdd(*matrices, *packed) : std::nullopt;
}

absl::Status UnfusedAttention::Run(const AttentionTask& task, int64_t limit) {
  const std::optional<int64_t> bytes = WorkspaceBytes(task);
  if (!bytes || *bytes > limit) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the stored scores take ",
                     bytes ? absl::StrCat(*bytes, " bytes") : std::string("more than 2^63 bytes"),
                     ", above the limit of ", limit, " bytes"));
  }
  if (*bytes > workspace_bytes_) {
    workspace_.reset();
    workspace_bytes_ = 0;
    workspace_.reset(new (std::nothrow) std::byte[static_cast<size_t>(*bytes)]);
    if (workspace_ == nullptr) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the host has no ", *bytes, " bytes for the stored scores"));
    }
    workspace_bytes_ = *bytes;
  }
  const int64_t score_count = task.heads_q() * task.seqlen_q * task.seqlen_k;
  scores_ = reinterpret_cast<float*>(workspace_.get());
  keys_ = scores_ + score_count;
  values_ = keys_ + task.heads_k() * PanelFloats(task.head_dim(), task.seqlen_k);
  probabilities_ = reinterpret_cast<std::byte*>(
      values_ + task.heads_k() * PanelFloats(task.seqlen_k, task.head_dim_v()));

  ConvertKeysAndValues(task);
  ComputeScores(task);
  ComputeProbabilities(task);
  ComputeOutputs(task);
  return absl::OkStatus();
}

float* UnfusedAttention::Scratch(int64_t floats) {
  std::vector<float>& scratch = scratch_.local();
  if (static_cast<int64_t>(scratch.size()) < floats) scratch.resize(static_cast<size_t>(floats));
  return scratch.data();
}

float* UnfusedAttention::ScoreRow(const AttentionTask& task, int64_t head, int64_t row) const {
  return scores_ + (head * task.seqlen_q + row) * task.seqlen_k;
}

std::byte* UnfusedAttention::ProbabilityRow(const AttentionTask& task, int64_t head,
                                            int64_t row) const {
  return probabilities_ + (head * task.seqlen_q + row) * task.seqlen_k * ByteSize(task.dtype());
}

const float* UnfusedAttention::KeyPanels(const AttentionTask& task, int64_t kv_head) const {
  return keys_ + kv_head * PanelFloats(task.head_dim(), task.seqlen_k);
}

const float* UnfusedAttention::ValuePanels(const AttentionTask& task, int64_t kv_head) const {
  return values_ + kv_head * PanelFloats(task.seqlen_k, task.head_dim_v());
}

void UnfusedAttention::ConvertKeysAndValues(const AttentionTask& task) {
  wild_keys_.resize(static_cast<size_t>(task.heads_k()));
  oneapi::tbb::parallel_for(int64_t{0}, task.heads_k(), [&](int64_t head) {
    const int64_t columns = task.head_dim_v();
    float* rows = Scratch(task.seqlen_k * std::max(task.head_dim(), columns));
    GatherRows(task.k, head, 0, task.seqlen_k, rows);
    PackTransposedPanels(rows, task.head_dim(), task.seqlen_k,
                         const_cast<float*>(KeyPanels(task, head)));
    GatherRows(task.v, head, 0, task.seqlen_k, rows);
    std::vector<int64_t>& wild = wild_keys_[static_cast<size_t>(head)];
    wild.clear();
    for (int64_t j = 0; j < task.seqlen_k; ++j) {
      float* value = rows + j * columns;
      if (std::all_of(value, value + columns, [](float x) { return std::isfinite(x); })) continue;
      std::fill(value, value + columns, 0.0f);
      wild.push_back(j);
    }
    PackPanels(rows, task.seqlen_k, columns, const_cast<float*>(ValuePanels(task, head)));
  });
}

void UnfusedAttention::ComputeScores(const AttentionTask& task) {
  const int64_t group = task.heads_q() / task.heads_k();
  ForRowBlocks(task, [&](int64_t head, int64_t first, int64_t rows) {
    float* queries = Scratch(rows * task.head_dim());
    GatherRows(task.q, head, first, rows, queries);
    Multiply(queries, task.head_dim(), rows, task.head_dim(), KeyPanels(task, head / group),
             task.seqlen_k, ScoreRow(task, head, first), task.seqlen_k);
  });
}

void UnfusedAttention::ComputeProbabilities(const AttentionTask& task) {
  ForRowBlocks(task, [&](int64_t head, int64_t first, int64_t rows) {
    float* bias = Scratch(task.seqlen_k);
    const float sink = task.sinks.absent() ? -kInfinity : task.sinks.data[head];
    for (int64_t row = first; row < first + rows; ++row) {
      float* scores = ScoreRow(task, head, row);
      const KeyRange keys = VisibleKeys(task.mask, row, task.seqlen_q, task.seqlen_k);
      FinishScores(task, head, row, keys, scores, bias);
      const float lse = Softmax(keys, sink, scores);
      std::fill(scores, scores + keys.begin, 0.0f);
      std::fill(scores + keys.end, scores + task.seqlen_k, 0.0f);
      FromFloats(scores, task.seqlen_k, task.dtype(), ProbabilityRow(task, head, row));
      if (!task.lse.absent()) task.lse.data[head * task.lse.head_stride + row] = lse;
    }
  });
}

// 0 * NaN is NaN: values that are not finite stay out of the product and are added only to the rows
// that see them.
void UnfusedAttention::AddWildValues(const AttentionTask& task, int64_t head, int64_t row,
                                     const float* probabilities, float* output) {
  const int64_t kv_head = head / (task.heads_q() / task.heads_k());
  const std::vector<int64_t>& wild = wild_keys_[static_cast<size_t>(kv_head)];
  if (wild.empty()) return;
  const KeyRange range = VisibleKeys(task.mask, row, task.seqlen_q, task.seqlen_k);
  float value[kMaxHeadDim];
  for (const int64_t j : wild) {
    if (j < range.begin || j >= range.end) continue;
    if (!task.bias.absent() && BiasAt(task, head, row, j) == -kInfinity) continue;
    ToFloats(RowOf(task.v, j, kv_head), task.v.dtype, task.head_dim_v(), value);
    for (int64_t c = 0; c < task.head_dim_v(); ++c) output[c] += probabilities[j] * value[c];
  }
}

void UnfusedAttention::ComputeOutputs(const AttentionTask& task) {
  const int64_t group = task.heads_q() / task.heads_k();
  const int64_t columns = task.head_dim_v();
  const int64_t keys = task.seqlen_k;
  ForRowBlocks(task, [&](int64_t head, int64_t first, int64_t rows) {
    float* probabilities = Scratch(rows * (keys + columns));
    float* outputs = probabilities + rows * keys;
    ToFloats(ProbabilityRow(task, head, first), task.dtype(), rows * keys, probabilities);
    if (keys == 0) {
      std::fill(outputs, outputs + rows * columns, 0.0f);
    } else {
      Multiply(probabilities, keys, rows, keys, ValuePanels(task, head / group), columns, outputs,
               columns);
    }
    for (int64_t i = 0; i < rows; ++i) {
      AddWildValues(task, head, first + i, probabilities + i * keys, outputs + i * columns);
    }
    for (int64_t i = 0; i < rows; ++i) {
      FromFloats(outputs + i * columns, columns, task.dtype(),
                 MutableRowOf(task.o, first + i, head));
    }
  });
  for (int64_t head = 0; head < task.heads_q(); ++head) {
    for (int64_t row = task.seqlen_q; row < task.padded_q(); ++row) {
      std::memset(MutableRowOf(task.o, row, head), 0,
                  static_cast<size_t>(columns * ByteSize(task.dtype())));
      if (!task.lse.absent()) task.lse.data[head * task.lse.head_stride + row] = -kInfinity;
    }
  }
}

}  // namespace attend::unfused
