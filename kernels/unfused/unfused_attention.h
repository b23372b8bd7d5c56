// Attention as it is written on the blackboard: S = Q K^T, P = softmax(S), O = P V, with S and P
// stored in full. What fused kernels are measured against.

#ifndef ATTEND_KERNELS_UNFUSED_UNFUSED_ATTENTION_H_
#define ATTEND_KERNELS_UNFUSED_UNFUSED_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "kernels/attention.h"
#include "oneapi/tbb/enumerable_thread_specific.h"

namespace attend::unfused {

// Bytes that Run() takes for `task` beside its tensors, or nullopt past 64 bits: S in fp32 and P in
// the inputs' dtype, K and V in fp32.
std::optional<int64_t> WorkspaceBytes(const AttentionTask& task);

// Computes tasks one after the other, the heads and row blocks of each in parallel in the calling
// thread's TBB arena. Keeps its memory. One call at a time.
class UnfusedAttention {
 public:
  // RESOURCE_EXHAUSTED when the workspace is larger than `limit` bytes or the host has no memory.
  absl::Status Run(const AttentionTask& task, int64_t limit);

 private:
  void ConvertKeysAndValues(const AttentionTask& task);
  void ComputeScores(const AttentionTask& task);
  void ComputeProbabilities(const AttentionTask& task);
  void ComputeOutputs(const AttentionTask& task);
  void AddWildValues(const AttentionTask& task, int64_t head, int64_t row,
                     const float* probabilities, float* output);
  float* Scratch(int64_t floats);
  float* ScoreRow(const AttentionTask& task, int64_t head, int64_t row) const;
  std::byte* ProbabilityRow(const AttentionTask& task, int64_t head, int64_t row) const;
  const float* KeyPanels(const AttentionTask& task, int64_t kv_head) const;
  const float* ValuePanels(const AttentionTask& task, int64_t kv_head) const;

  std::unique_ptr<std::byte[]> workspace_;
  int64_t workspace_bytes_ = 0;
  // Parts of the workspace, for the task at hand.
  float* scores_ = nullptr;             // [heads_q, seqlen_q, seqlen_k]
  float* keys_ = nullptr;               // panels of K^T, for each kv head
  float* values_ = nullptr;             // panels of V, for each kv head
  std::byte* probabilities_ = nullptr;  // [heads_q, seqlen_q, seqlen_k], inputs' dtype
  // For each kv head, the keys whose values are not all finite; their panels hold zeros.
  std::vector<std::vector<int64_t>> wild_keys_;
  oneapi::tbb::enumerable_thread_specific<std::vector<float>> scratch_;
};

}  // namespace attend::unfused

#endif  // ATTEND_KERNELS_UNFUSED_UNFUSED_ATTENTION_H_
