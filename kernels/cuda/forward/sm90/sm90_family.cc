#include "kernels/cuda/forward/sm90/sm90_family.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cuda/forward/kernel_names.h"
#include "kernels/cuda/forward/sm90/sm90_launch.h"
#include "kernels/cuda/forward/sm90/sm90_params.h"
#include "kernels/cuda/forward/sm90/sm90_plan.h"
#include "kernels/cuda/forward/sm90/sm90_tensor_map.h"

namespace attend::cuda {
namespace {

using namespace attend::cuda::sm90;  // NOLINT: the host side of that namespace

constexpr size_t kAlignment = 256;
constexpr int64_t kMaxItems = INT32_MAX - 1024;  // room for the items that blocks draw in vain
constexpr int64_t kStoredRows = 16;              // of O, as a warp stores them
constexpr int64_t kAlignedElements = 8;          // 16 bytes, the copy engine's unit

constexpr double kLog2E = 1.4426950408889634;
int64_t RoundUp(int64_t elements) {
  return (elements + kAlignedElements - 1) / kAlignedElements * kAlignedElements;
}

// The copy engine wants every row of every head on a boundary of 16 bytes.
bool Aligned(const TensorView& view, int64_t rows) {
  if (rows == 0 || view.heads == 0) return true;
  int64_t bits = view.columns;
  if (rows > 1) bits |= view.row_stride;
  if (view.heads > 1) bits |= view.head_stride;
  if (bits % kAlignedElements != 0) return false;
  return view.memory != MemoryKind::kDevice ||
         reinterpret_cast<uintptr_t>(view.data) % (kAlignedElements * 2) == 0;
}

// tanh comes from exponentials here: its error, about 2^-23, grows by the cap. Larger caps go to
// the portable family, whose tanh is exact near 0.
constexpr float kMaxSoftcap = 256.0f;

// Hands out sections of a buffer in the same order in Measure and in Fill.
class Sections {
 public:
  size_t Add(size_t bytes) {
    const size_t at = bytes_;
    bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_ = 0;
};

class Sm90Family final : public ForwardFamily {
 public:
  explicit Sm90Family(int sm_count) : sm_count_(sm_count) {}
  bool available() const { return encoder_.available(); }

  bool Accepts(const AttentionTask& task) const override;
  uint32_t Variant(const AttentionTask& task) const override {
    return static_cast<uint32_t>(HeadTileOf(task)) * 2 + (task.dtype() == DType::kBF16 ? 1 : 0);
  }
  LaunchSize Measure(absl::Span<const AttentionTask> tasks) override;
  void Fill(absl::Span<const AttentionTask> tasks, absl::Span<const DeviceTask> placed,
            std::byte* upload_host, std::byte* upload_device, std::byte* workspace_device) override;
  cudaError_t Launch(cudaStream_t stream, std::vector<KernelLaunches>* launches) override;

 private:
  int Blocks(const Sm90Part& part) const {
    const int64_t most = int64_t{sm_count_} * Kernel(part.kind).blocks_per_multiprocessor;
    if (part.equal_items && part.kind != TileKind::kDecode && head_tile_ != HeadTile::k64) {
      // No more blocks than the same number of rounds takes: the others would only draw power in
      // all rounds but the last (+1 % at D = 128; at D = 64 memory is what counts, and it loses).
      const int64_t rounds = std::max<int64_t>((part.items + most - 1) / most, 1);
      return static_cast<int>((part.items + rounds - 1) / rounds);
    }
    return static_cast<int>(std::min(part.items, most));
  }
  const Sm90Kernel& Kernel(TileKind kind) const { return KernelOf(head_tile_, kind, bf16_); }
  bool EncodeMaps(const DeviceTask& task, const Sm90TaskPlan& plan, const void* anywhere,
                  Sm90Task* out);

  enum MapSlot { kMapQ, kMapK, kMapV, kMapO, kMapSlots };

  const int sm_count_;
  const TensorMapEncoder encoder_;
  std::array<TensorMapEncoder::Slot, kMapSlots> slots_;

  // Of the batch between Measure and Launch.
  HeadTile head_tile_ = HeadTile::k64;
  bool bf16_ = false;
  Sm90BatchPlan plan_;
  std::vector<size_t> partial_o_at_, partial_lse_at_;  // in the workspace, by place
  std::vector<int32_t> merge_index_;
  std::vector<int64_t> merge_first_;
  size_t tasks_at_ = 0, segments_at_ = 0, counters_at_ = 0, merge_index_at_ = 0,
         merge_first_at_ = 0, poison_at_ = 0;
  std::byte* upload_ = nullptr;     // on the device
  std::byte* workspace_ = nullptr;  // on the device
  bool encoded_ = true;
  std::array<std::array<bool, kTileKinds>, 12> prepared_ = {};  // by variant and kind
};

bool Sm90Family::Accepts(const AttentionTask& task) const {
  if (task.dtype() == DType::kF32 || !task.bias.absent()) return false;
  if (task.softcap > kMaxSoftcap) return false;
  if (task.seqlen_k >= kMaxLength || task.padded_q() >= kMaxLength) return false;
  if (task.heads_q() >= kMaxLength) return false;
  if (!Aligned(task.q, task.seqlen_q) || !Aligned(task.k, task.seqlen_k) ||
      !Aligned(task.v, task.seqlen_k) || !Aligned(task.o, task.padded_q())) {
    return false;
  }
  // No product of counts overflows: each is below 2^29, tiles below 2^23.
  const Sm90TaskPlan plan = PlanSm90Task(task);
  return plan.heads * plan.row_tiles <= kMaxItems / plan.chunks;
}

LaunchSize Sm90Family::Measure(absl::Span<const AttentionTask> tasks) {
  head_tile_ = HeadTileOf(tasks[0]);
  bf16_ = tasks[0].dtype() == DType::kBF16;
  PlanSm90Batch(tasks, &plan_);
  const size_t count = tasks.size();
  partial_o_at_.assign(count, 0);
  partial_lse_at_.assign(count, 0);
  merge_index_.clear();
  merge_first_.assign(1, 0);

  Sections workspace;
  size_t poison_words = 0;
  for (const Sm90Part& part : plan_.parts) {
    poison_words =
        std::max(poison_words, static_cast<size_t>(Blocks(part)) * Kernel(part.kind).poison_words);
  }
  poison_at_ = workspace.Add(poison_words * sizeof(uint32_t));
  for (size_t place = 0; place < count; ++place) {
    const size_t i = static_cast<size_t>(plan_.order[place]);
    if (plan_.tasks[i].chunks == 1 || plan_.tasks[i].items() == 0) continue;
    const int64_t rows = tasks[i].heads_q() * tasks[i].padded_q();
    const size_t parts = static_cast<size_t>(rows * plan_.tasks[i].chunks);
    partial_o_at_[place] =
        workspace.Add(parts * static_cast<size_t>(tasks[i].head_dim_v()) * sizeof(float));
    partial_lse_at_[place] = workspace.Add(parts * sizeof(float));
    merge_index_.push_back(static_cast<int32_t>(place));
    merge_first_.push_back(merge_first_.back() + rows);
  }

  Sections upload;
  tasks_at_ = upload.Add(count * sizeof(Sm90Task));
  segments_at_ = upload.Add(plan_.segments.size() * sizeof(Sm90Segment));
  counters_at_ = upload.Add(plan_.parts.size() * 2 * sizeof(int32_t));
  merge_index_at_ = upload.Add(merge_index_.size() * sizeof(int32_t));
  merge_first_at_ = upload.Add(merge_first_.size() * sizeof(int64_t));
  return {upload.bytes(), workspace.bytes()};
}

bool Sm90Family::EncodeMaps(const DeviceTask& task, const Sm90TaskPlan& plan, const void* anywhere,
                            Sm90Task* out) {
  const Sm90Kernel& kernel = Kernel(plan.kind);
  // A tensor without rows is never read, but its map must name some memory; strides that do not
  // count need not be whole units.
  const auto encode = [&](const void* data, int64_t columns, int64_t rows, int64_t heads,
                          int64_t row_stride, int64_t head_stride, int64_t pack, int64_t box_rows,
                          MapSlot slot, CUtensorMap* map) {
    const TensorMapShape shape = {
        task.element,         columns, rows,    heads, RoundUp(row_stride),
        RoundUp(head_stride), pack,    box_rows};
    return encoder_.Encode(shape, rows > 0 ? data : anywhere, &slots_[slot], map);
  };
  const bool loads = encode(task.q, task.head_dim, task.seqlen_q, task.heads_q, task.q_row_stride,
                            task.q_head_stride, plan.pack, plan.rows, kMapQ, &out->q) &&
                     encode(task.k, task.head_dim, task.seqlen_k, task.heads_k, task.k_row_stride,
                            task.k_head_stride, 0, kernel.keys, kMapK, &out->k) &&
                     encode(task.v, task.head_dim_v, task.seqlen_k, task.heads_k, task.v_row_stride,
                            task.v_head_stride, 0, kernel.keys, kMapV, &out->v);
  if (!loads || kernel.direct) return loads;
  return encode(task.o, task.head_dim_v, task.padded_q, task.heads_q, task.o_row_stride,
                task.o_head_stride, 0, kStoredRows, kMapO, &out->o);
}

void Sm90Family::Fill(absl::Span<const AttentionTask> /*tasks*/,
                      absl::Span<const DeviceTask> placed, std::byte* upload_host,
                      std::byte* upload_device, std::byte* workspace_device) {
  upload_ = upload_device;
  workspace_ = workspace_device;
  encoded_ = true;
  Sm90Task* const out = reinterpret_cast<Sm90Task*>(upload_host + tasks_at_);
  for (size_t place = 0; place < placed.size(); ++place) {
    const size_t i = static_cast<size_t>(plan_.order[place]);
    const DeviceTask& task = placed[i];
    const Sm90TaskPlan& plan = plan_.tasks[i];
    Sm90Task& to = out[place];
    if (plan.items() == 0) continue;
    encoded_ = EncodeMaps(task, plan, upload_device, &to) && encoded_;
    to.o_pointer = task.o;
    to.lse = task.lse;
    to.partial_o = reinterpret_cast<float*>(workspace_device + partial_o_at_[place]);
    to.partial_lse = reinterpret_cast<float*>(workspace_device + partial_lse_at_[place]);
    to.alibi_slopes = task.alibi_slopes;
    to.sinks = task.sinks;
    to.o_row_stride = task.o_row_stride;
    to.o_head_stride = task.o_head_stride;
    to.lse_head_stride = task.lse_head_stride;
    to.seqlen_q = static_cast<int32_t>(task.seqlen_q);
    to.seqlen_k = static_cast<int32_t>(task.seqlen_k);
    to.padded_q = static_cast<int32_t>(task.padded_q);
    to.first_offset = plan.first_offset;
    to.end_offset = plan.end_offset;
    to.heads_q = task.heads_q;
    to.pack = plan.pack;
    to.heads_per_kv = static_cast<int32_t>(plan.heads / task.heads_k);
    to.rows = plan.rows;
    to.chunk_origin = static_cast<int32_t>(plan.chunk_origin);
    to.chunk_keys = static_cast<int32_t>(plan.chunk_keys);
    to.chunks = static_cast<int32_t>(plan.chunks);
    to.head_dim_v = task.head_dim_v;
    const Sm90Kernel& kernel = Kernel(plan.kind);
    to.q_bytes = kernel.q_panel_bytes / kernel.rows * plan.rows * plan.pack;
    const bool folded = !plan.modified;
    to.flags = (folded ? 0 : kModifiedScores) | (plan.masked ? kMasked : 0) |
               (task.sinks != nullptr ? kSinks : 0);
    to.exponent_scale =
        static_cast<float>(folded ? kLog2E * static_cast<double>(task.softmax_scale) : kLog2E);
    to.logit_scale = folded ? task.softmax_scale : 1.0f;
    to.softmax_scale = task.softmax_scale;
    to.softcap = task.softcap;
  }
  const auto copy = [upload_host](size_t at, const auto& values) {
    if (values.empty()) return;
    std::memcpy(upload_host + at, values.data(), values.size() * sizeof(values[0]));
  };
  copy(segments_at_, plan_.segments);
  copy(merge_index_at_, merge_index_);
  copy(merge_first_at_, merge_first_);
  std::memset(upload_host + counters_at_, 0, plan_.parts.size() * 2 * sizeof(int32_t));
}

cudaError_t Sm90Family::Launch(cudaStream_t stream, std::vector<KernelLaunches>* launches) {
  if (!encoded_) return cudaErrorInvalidValue;
  const Sm90Task* const tasks = reinterpret_cast<const Sm90Task*>(upload_ + tasks_at_);
  for (size_t i = 0; i < plan_.parts.size(); ++i) {
    const Sm90Part& part = plan_.parts[i];
    if (part.items == 0) continue;
    const Sm90Kernel& kernel = Kernel(part.kind);
    const size_t variant = static_cast<size_t>(head_tile_) * 2 + (bf16_ ? 1 : 0);
    if (bool& prepared = prepared_[variant][static_cast<size_t>(part.kind)]; !prepared) {
      if (const cudaError_t error = PrepareKernel(kernel); error != cudaSuccess) return error;
      prepared = true;
    }
    Sm90Launch launch = {};
    launch.tasks = tasks;
    launch.segments =
        reinterpret_cast<const Sm90Segment*>(upload_ + segments_at_) + part.first_segment;
    launch.next_item = reinterpret_cast<int32_t*>(upload_ + counters_at_) + 2 * i;
    launch.poison = reinterpret_cast<uint32_t*>(workspace_ + poison_at_);
    launch.segment_count = part.segments;
    const Sm90Segment& last_segment =
        plan_.segments[static_cast<size_t>(part.first_segment + part.segments - 1)];
    launch.first_task = plan_.segments[static_cast<size_t>(part.first_segment)].first_task;
    launch.task_count = last_segment.first_task + last_segment.tasks - launch.first_task;
    launch.only = plan_.segments[static_cast<size_t>(part.first_segment)];
    launch.items = static_cast<int32_t>(part.items);
    launch.fixed_stride = part.equal_items ? 1 : 0;
    const cudaError_t error = LaunchKernel(kernel, Blocks(part), launch, stream);
    if (error != cudaSuccess) return error;
    launches->push_back({part.kind == TileKind::kDecode ? kDecodeSm90Name : kForwardSm90Name, 1});
  }
  if (merge_index_.empty()) return cudaSuccess;
  const Sm90Merge merge = {tasks, reinterpret_cast<const int32_t*>(upload_ + merge_index_at_),
                           reinterpret_cast<const int64_t*>(upload_ + merge_first_at_),
                           static_cast<int32_t>(merge_index_.size())};
  const cudaError_t error = LaunchMerge(merge, merge_first_.back(), bf16_, stream);
  if (error == cudaSuccess) launches->push_back({kMergeName, 1});
  return error;
}

}  // namespace

std::unique_ptr<ForwardFamily> MakeSm90Family(int sm_count) {
  auto family = std::make_unique<Sm90Family>(sm_count);
  if (!family->available()) return nullptr;
  return family;
}

}  // namespace attend::cuda
