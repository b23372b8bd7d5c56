#include "kernels/cuda/unfused/unfused_family.h"

#include <algorithm>
#include <optional>

#include "kernels/cuda/unfused/cublas.h"
#include "kernels/cuda/unfused/unfused_kernels.h"

namespace attend::cuda {
namespace {

using unfused::StepParams;

constexpr size_t kAlignment = 256;

// Sizes of one product are 32-bit in cuBLAS.
constexpr int64_t kMaxRows = INT32_MAX;

size_t AlignUp(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Parts of the workspace of one task; tasks run one after another and share it.
struct Workspace {
  size_t scores = 0, probabilities = 0, values = 0, found = 0, bytes = 0;
};

Workspace Layout(const AttentionTask& task) {
  const size_t element = static_cast<size_t>(ByteSize(task.dtype()));
  const size_t pairs = static_cast<size_t>(task.heads_q() * task.seqlen_q * task.seqlen_k);
  const size_t values = static_cast<size_t>(task.seqlen_k * task.heads_k() * task.head_dim_v());
  Workspace w;
  w.probabilities = AlignUp(pairs * sizeof(float));
  w.values = w.probabilities + AlignUp(pairs * element);
  w.found = w.values + AlignUp(values * element);
  w.bytes = w.found + kAlignment;
  return w;
}

cudaDataType DataType(Element element) {
  switch (element) {
    case Element::kF32:
      return CUDA_R_32F;
    case Element::kF16:
      return CUDA_R_16F;
    case Element::kBF16:
      break;
  }
  return CUDA_R_16BF;
}

// A single row may have any stride; cuBLAS wants one that holds it.
int Pitch(int64_t row_stride, int columns) {
  return static_cast<int>(std::max<int64_t>(row_stride, columns));
}

class UnfusedFamily final : public ForwardFamily {
 public:
  ~UnfusedFamily() override {
    if (handle_ != nullptr) LoadCublas()->destroy(handle_);
  }

  bool Accepts(const AttentionTask& task) const override {
    if (std::max({task.padded_q(), task.seqlen_k, task.heads_q()}) > kMaxRows) return false;
    const std::optional<int64_t> pairs =
        CheckedMultiply(std::max<int64_t>(task.seqlen_q, 1), std::max<int64_t>(task.seqlen_k, 1));
    const std::optional<int64_t> bytes =
        pairs.has_value() ? CheckedMultiply(*pairs, task.heads_q() * 8) : std::nullopt;
    return bytes.has_value();
  }

  uint32_t Variant(const AttentionTask& task) const override {
    return static_cast<uint32_t>(task.dtype());
  }

  LaunchSize Measure(absl::Span<const AttentionTask> tasks) override {
    layouts_.clear();
    LaunchSize size;
    for (const AttentionTask& task : tasks) {
      layouts_.push_back(Layout(task));
      size.workspace_bytes = std::max(size.workspace_bytes, layouts_.back().bytes);
    }
    return size;
  }

  void Fill(absl::Span<const AttentionTask> /*tasks*/, absl::Span<const DeviceTask> placed,
            std::byte* /*upload_host*/, std::byte* /*upload_device*/,
            std::byte* workspace_device) override {
    steps_.clear();
    for (size_t i = 0; i < placed.size(); ++i) {
      const Workspace& w = layouts_[i];
      steps_.push_back({placed[i], reinterpret_cast<float*>(workspace_device + w.scores),
                        workspace_device + w.probabilities, workspace_device + w.values,
                        reinterpret_cast<int*>(workspace_device + w.found)});
    }
  }

  cudaError_t Launch(cudaStream_t stream, std::vector<KernelLaunches>* launches) override {
    // Made here, where the executor's device is current.
    if (handle_ == nullptr && LoadCublas()->create(&handle_) != Cublas::kSuccess) {
      handle_ = nullptr;
      return cudaErrorMemoryAllocation;
    }
    if (LoadCublas()->set_stream(handle_, stream) != Cublas::kSuccess) {
      return cudaErrorNotSupported;
    }
    int64_t products = 0;
    for (const StepParams& step : steps_) {
      if (const cudaError_t error = RunTask(step, stream, &products); error != cudaSuccess) {
        return error;
      }
    }
    const int64_t tasks = static_cast<int64_t>(steps_.size());
    launches->push_back({kUnfusedKernelNames[0], products});
    launches->push_back({kUnfusedKernelNames[1], tasks});
    launches->push_back({kUnfusedKernelNames[2], 2 * tasks});
    return cudaSuccess;
  }

 private:
  cudaError_t RunTask(const StepParams& step, cudaStream_t stream, int64_t* products);
  cudaError_t Products(const StepParams& step, bool scores, int64_t* products);

  Cublas::Handle handle_ = nullptr;
  std::vector<Workspace> layouts_;
  std::vector<StepParams> steps_;
};

cudaError_t UnfusedFamily::RunTask(const StepParams& step, cudaStream_t stream, int64_t* products) {
  const DeviceTask& t = step.task;
  if (t.seqlen_q > 0 && t.seqlen_k > 0 && t.heads_q > 0) {
    cudaError_t error = unfused::LaunchCleanValues(step, stream);
    if (error == cudaSuccess) error = Products(step, true, products);
    if (error == cudaSuccess) error = unfused::LaunchSoftmax(step, stream);
    if (error == cudaSuccess) error = Products(step, false, products);
    if (error != cudaSuccess) return error;
  }
  return unfused::LaunchFinish(step, stream);
}

// S = Q K^T or O = P V, for all heads. cuBLAS stores by columns, so it is asked for the transposed
// products, S^T = K Q^T and O^T = V^T P^T, whose columns are our rows. Query heads of one kv head
// are one batched product in which K or V does not move.
cudaError_t UnfusedFamily::Products(const StepParams& step, bool scores, int64_t* products) {
  const DeviceTask& t = step.task;
  const int group = t.heads_q / t.heads_k;
  const int calls = group == 1 ? 1 : t.heads_k;
  const int batch = group == 1 ? t.heads_q : group;
  const cudaDataType type = DataType(t.element);
  const int64_t bytes = t.element == Element::kF32 ? 4 : 2;
  const int sq = static_cast<int>(t.seqlen_q);
  const int sk = static_cast<int>(t.seqlen_k);
  const int64_t pairs = t.seqlen_q * t.seqlen_k;
  const int64_t values_row = static_cast<int64_t>(t.heads_k) * t.head_dim_v;
  const float one = 1.0f;
  const float zero = 0.0f;
  const auto at = [bytes](const void* base, int64_t elements) -> const void* {
    return static_cast<const char*>(base) + elements * bytes;
  };
  for (int call = 0; call < calls; ++call) {
    const int64_t head = static_cast<int64_t>(call) * group;
    Cublas::Status status;
    if (scores) {
      status = LoadCublas()->gemm(handle_, Cublas::kTransposed, Cublas::kAsIs, sk, sq, t.head_dim,
                                  &one, at(t.k, call * t.k_head_stride), type,
                                  Pitch(t.k_row_stride, t.head_dim),
                                  group == 1 ? t.k_head_stride : 0, at(t.q, head * t.q_head_stride),
                                  type, Pitch(t.q_row_stride, t.head_dim), t.q_head_stride, &zero,
                                  const_cast<float*>(step.scores) + head * pairs, CUDA_R_32F, sk,
                                  pairs, batch, Cublas::kFp32, Cublas::kDefault);
    } else {
      status = LoadCublas()->gemm(handle_, Cublas::kAsIs, Cublas::kAsIs, t.head_dim_v, sq, sk, &one,
                                  at(step.values, call * static_cast<int64_t>(t.head_dim_v)), type,
                                  static_cast<int>(values_row), group == 1 ? t.head_dim_v : 0,
                                  at(step.probabilities, head * pairs), type, sk, pairs, &zero,
                                  const_cast<void*>(at(t.o, head * t.o_head_stride)), type,
                                  Pitch(t.o_row_stride, t.head_dim_v), t.o_head_stride, batch,
                                  Cublas::kFp32, Cublas::kDefault);
    }
    if (status == Cublas::kAllocFailed) return cudaErrorMemoryAllocation;
    if (status != Cublas::kSuccess) return cudaErrorNotSupported;
    ++*products;
  }
  return cudaSuccess;
}

}  // namespace

std::unique_ptr<ForwardFamily> MakeUnfusedFamily() { return std::make_unique<UnfusedFamily>(); }

}  // namespace attend::cuda
