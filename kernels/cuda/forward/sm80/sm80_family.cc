#include "kernels/cuda/forward/sm80/sm80_family.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/cuda/forward/kernel_names.h"
#include "kernels/cuda/forward/sm80/sm80_config.h"
#include "kernels/cuda/forward/sm80/sm80_kernels.h"
#include "kernels/cuda/forward/sm80/sm80_params.h"
#include "kernels/cuda/forward/sm80/sm80_variant.h"
#include "kernels/plan.h"

namespace attend::cuda {
namespace {

using namespace attend::cuda::sm80;  // NOLINT: the host side of that namespace

constexpr size_t kAlignment = 256;
constexpr size_t AlignUp(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Positions inside an item are 32-bit on the device, with room for sums.
constexpr int64_t kMaxRows = int64_t{1} << 30;
constexpr int64_t kMaxItems = INT32_MAX;

// A grid's x dimension.
constexpr int64_t kMaxBlocks = INT32_MAX;
constexpr int64_t kMaxVectors = kMaxBlocks * kVectorWarps;

// Columns of a repacked tensor: whole pieces of 16 bytes.
int64_t PaddedColumns(const TensorView& view) {
  const int64_t piece = 16 / ByteSize(view.dtype);
  return (view.columns + piece - 1) / piece * piece;
}

// The kernels copy pieces of 16 bytes, so every row of every head must start on one and hold whole
// ones. Tensors that the executor places are aligned as a whole; those in place may not be.
bool NeedsRepack(const TensorView& view, int64_t rows) {
  if (rows == 0 || view.heads == 0) return false;
  const int64_t bytes = ByteSize(view.dtype);
  int64_t bits = view.columns * bytes;
  if (rows > 1) bits |= view.row_stride * bytes;
  if (view.heads > 1) bits |= view.head_stride * bytes;
  if (view.memory == MemoryKind::kDevice) bits |= reinterpret_cast<intptr_t>(view.data);
  return (bits & 15) != 0;
}

// Hands out sections of the upload and the workspace in the same order in Measure and in Fill.
class Sections {
 public:
  size_t Add(size_t bytes) {
    const size_t at = bytes_;
    bytes_ += AlignUp(bytes);
    return at;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

class Sm80Family final : public ForwardFamily {
 public:
  bool Accepts(const AttentionTask& task) const override {
    if (task.seqlen_k > kMaxRows || task.padded_q() > kMaxRows) return false;
    if (task.heads_q() > kMaxVectors / std::max<int64_t>({task.padded_q(), task.seqlen_k, 1})) {
      return false;
    }
    const TaskPlan plan = PlanTask(task, RuleOf(VariantOf(task)));
    return plan.rows <= kMaxRows && plan.items() <= kMaxItems;
  }

  uint32_t Variant(const AttentionTask& task) const override { return VariantOf(task).Encode(); }

  LaunchSize Measure(absl::Span<const AttentionTask> tasks) override;
  void Fill(absl::Span<const AttentionTask> tasks, absl::Span<const DeviceTask> placed,
            std::byte* upload_host, std::byte* upload_device, std::byte* workspace_device) override;
  cudaError_t Launch(cudaStream_t stream, std::vector<KernelLaunches>* launches) override;

 private:
  // A table of vectors: prefix sums and, for rows of tasks, which task.
  struct Table {
    std::vector<int64_t> first;
    std::vector<int32_t> index;
    size_t first_at = 0, index_at = 0;  // in the upload
    void Clear() {
      first.assign(1, 0);
      index.clear();
    }
    void Add(int32_t task, int64_t vectors) {
      index.push_back(task);
      first.push_back(first.back() + vectors);
    }
    int64_t vectors() const { return first.back(); }
    int32_t count() const { return static_cast<int32_t>(index.size()); }
  };
  struct Repack {
    RepackParams params;
    size_t workspace_at;
  };

  void AddRepack(const TensorView& view, int64_t rows, int32_t place, Sections* workspace);
  cudaError_t LaunchVectors(const KernelFunction& kernel, void* argument, int64_t vectors,
                            cudaStream_t stream, std::string_view name,
                            std::vector<KernelLaunches>* launches);

  sm80::Variant variant_;
  BatchPlan plan_;
  Table merge_, pad_, repack_;
  std::vector<Repack> repacks_;
  std::vector<size_t> partial_o_at_, partial_lse_at_;  // in the workspace, by place in the launch
  size_t tasks_at_ = 0, first_item_at_ = 0, repacks_at_ = 0;
  std::byte* upload_ = nullptr;                       // on the device
  std::array<bool, kEncodedVariants> prepared_ = {};  // by variant: may use its shared memory
};

void Sm80Family::AddRepack(const TensorView& view, int64_t rows, int32_t place,
                           Sections* workspace) {
  if (!NeedsRepack(view, rows)) return;
  Repack repack = {};
  repack.params.row_stride = view.row_stride;
  repack.params.head_stride = view.head_stride;
  repack.params.heads = static_cast<int32_t>(view.heads);
  repack.params.columns = static_cast<int32_t>(view.columns);
  repack.params.padded = static_cast<int32_t>(PaddedColumns(view));
  repack.params.element_bytes = static_cast<int32_t>(ByteSize(view.dtype));
  const int64_t elements = rows * view.heads * PaddedColumns(view);
  repack.workspace_at = workspace->Add(static_cast<size_t>(elements * ByteSize(view.dtype)));
  repack_.Add(place, rows * view.heads);
  repacks_.push_back(repack);
}

LaunchSize Sm80Family::Measure(absl::Span<const AttentionTask> tasks) {
  variant_ = VariantOf(tasks[0]);
  PlanBatch(tasks, RuleOf(variant_), &plan_);
  const size_t count = tasks.size();
  merge_.Clear();
  pad_.Clear();
  repack_.Clear();
  repacks_.clear();
  partial_o_at_.assign(count, 0);
  partial_lse_at_.assign(count, 0);

  Sections workspace;
  for (size_t place = 0; place < count; ++place) {
    const size_t i = static_cast<size_t>(plan_.order[place]);
    const AttentionTask& task = tasks[i];
    const TaskPlan& plan = plan_.tasks[i];
    const int32_t slot = static_cast<int32_t>(place);
    if (plan.items() > 0) {
      AddRepack(task.q, task.seqlen_q, slot * 3, &workspace);
      AddRepack(task.k, task.seqlen_k, slot * 3 + 1, &workspace);
      AddRepack(task.v, task.seqlen_k, slot * 3 + 2, &workspace);
      if (plan.chunks > 1) {
        const int64_t vectors = task.heads_q() * task.seqlen_q;
        const size_t parts = static_cast<size_t>(vectors * plan.chunks);
        partial_o_at_[place] =
            workspace.Add(parts * static_cast<size_t>(task.head_dim_v()) * sizeof(float));
        partial_lse_at_[place] = workspace.Add(parts * sizeof(float));
        merge_.Add(slot, vectors);
      }
    }
    if (const int64_t pad = task.padded_q() - task.seqlen_q; pad > 0 && task.heads_q() > 0) {
      pad_.Add(slot, pad * task.heads_q());
    }
  }

  Sections upload;
  tasks_at_ = upload.Add(count * sizeof(TaskParams));
  first_item_at_ = upload.Add((count + 1) * sizeof(int64_t));
  repacks_at_ = upload.Add(repacks_.size() * sizeof(RepackParams));
  for (Table* table : {&merge_, &pad_, &repack_}) {
    table->first_at = upload.Add(table->first.size() * sizeof(int64_t));
    table->index_at = upload.Add(table->index.size() * sizeof(int32_t));
  }
  return {upload.bytes(), workspace.bytes()};
}

void Sm80Family::Fill(absl::Span<const AttentionTask> tasks, absl::Span<const DeviceTask> placed,
                      std::byte* upload_host, std::byte* upload_device,
                      std::byte* workspace_device) {
  upload_ = upload_device;
  TaskParams* const out = reinterpret_cast<TaskParams*>(upload_host + tasks_at_);
  for (size_t place = 0; place < tasks.size(); ++place) {
    const size_t i = static_cast<size_t>(plan_.order[place]);
    const TaskPlan& plan = plan_.tasks[i];
    const int64_t group = Group(tasks[i]);
    TaskParams params = {};
    params.task = placed[i];
    params.rows = plan.rows;
    params.chunk_keys = plan.chunk_keys;
    params.partial_o = reinterpret_cast<float*>(workspace_device + partial_o_at_[place]);
    params.partial_lse = reinterpret_cast<float*>(workspace_device + partial_lse_at_[place]);
    params.group = static_cast<int32_t>(plan.packed ? group : 1);
    params.heads_per_kv = static_cast<int32_t>(plan.packed ? 1 : group);
    params.row_tiles = static_cast<int32_t>(plan.row_tiles);
    params.chunks = static_cast<int32_t>(plan.chunks);
    out[place] = params;
  }
  // Repacked tensors replace the originals.
  RepackParams* const repacks = reinterpret_cast<RepackParams*>(upload_host + repacks_at_);
  for (size_t i = 0; i < repacks_.size(); ++i) {
    RepackParams params = repacks_[i].params;
    DeviceTask& task = out[repack_.index[i] / 3].task;
    params.to = workspace_device + repacks_[i].workspace_at;
    const int64_t head_stride = params.padded;
    const int64_t row_stride = head_stride * params.heads;
    switch (repack_.index[i] % 3) {
      case 0:
        params.from = task.q;
        task.q = params.to;
        task.q_head_stride = head_stride;
        task.q_row_stride = row_stride;
        break;
      case 1:
        params.from = task.k;
        task.k = params.to;
        task.k_head_stride = head_stride;
        task.k_row_stride = row_stride;
        break;
      default:
        params.from = task.v;
        task.v = params.to;
        task.v_head_stride = head_stride;
        task.v_row_stride = row_stride;
        break;
    }
    repacks[i] = params;
  }
  const auto copy = [upload_host](size_t at, const auto& values) {
    if (values.empty()) return;
    std::memcpy(upload_host + at, values.data(), values.size() * sizeof(values[0]));
  };
  copy(first_item_at_, plan_.first_item);
  for (const Table* table : {&merge_, &pad_, &repack_}) {
    copy(table->first_at, table->first);
    copy(table->index_at, table->index);
  }
}

cudaError_t Sm80Family::LaunchVectors(const KernelFunction& kernel, void* argument, int64_t vectors,
                                      cudaStream_t stream, std::string_view name,
                                      std::vector<KernelLaunches>* launches) {
  const int64_t blocks = (vectors + kVectorWarps - 1) / kVectorWarps;
  if (blocks == 0) return cudaSuccess;
  if (blocks > kMaxBlocks) return cudaErrorInvalidConfiguration;
  void* arguments[] = {argument};
  const cudaError_t error =
      cudaLaunchKernel(kernel.function, dim3(static_cast<unsigned>(blocks)),
                       dim3(static_cast<unsigned>(kernel.threads)), arguments, 0, stream);
  if (error == cudaSuccess) launches->push_back({name, 1});
  return error;
}

cudaError_t Sm80Family::Launch(cudaStream_t stream, std::vector<KernelLaunches>* launches) {
  RepackLaunch repack = {reinterpret_cast<const RepackParams*>(upload_ + repacks_at_),
                         reinterpret_cast<const int64_t*>(upload_ + repack_.first_at),
                         repack_.count()};
  cudaError_t error = LaunchVectors(RepackKernelFunction(), &repack, repack_.vectors(), stream,
                                    kRepackName, launches);
  if (error != cudaSuccess) return error;

  const TaskParams* const tasks = reinterpret_cast<const TaskParams*>(upload_ + tasks_at_);
  if (plan_.items() > 0) {
    const KernelFunction kernel = FunctionOf(variant_);
    if (bool& prepared = prepared_[variant_.Encode()]; !prepared) {
      error = cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                   kernel.shared_bytes);
      if (error != cudaSuccess) return error;
      prepared = true;
    }
    KernelLaunches launched = {NameOf(variant_.kind), 0};
    ItemLaunch items = {tasks, reinterpret_cast<const int64_t*>(upload_ + first_item_at_),
                        static_cast<int32_t>(plan_.tasks.size()), 0};
    for (; items.first < plan_.items(); items.first += kMaxBlocks) {
      const int64_t blocks = std::min(plan_.items() - items.first, kMaxBlocks);
      void* arguments[] = {&items};
      error = cudaLaunchKernel(kernel.function, dim3(static_cast<unsigned>(blocks)),
                               dim3(static_cast<unsigned>(kernel.threads)), arguments,
                               static_cast<size_t>(kernel.shared_bytes), stream);
      if (error != cudaSuccess) return error;
      ++launched.launches;
    }
    launches->push_back(launched);
  }
  const auto rows = [&](const Table& table) {
    return RowLaunch{tasks, reinterpret_cast<const int32_t*>(upload_ + table.index_at),
                     reinterpret_cast<const int64_t*>(upload_ + table.first_at), table.count()};
  };
  RowLaunch merge = rows(merge_);
  error =
      LaunchVectors(MergeKernelFunction(), &merge, merge_.vectors(), stream, kMergeName, launches);
  if (error != cudaSuccess) return error;
  RowLaunch pad = rows(pad_);
  return LaunchVectors(PadKernelFunction(), &pad, pad_.vectors(), stream, kPadName, launches);
}

}  // namespace

std::unique_ptr<ForwardFamily> MakeSm80Family() { return std::make_unique<Sm80Family>(); }

}  // namespace attend::cuda
