#include "kernels/cuda/placement.h"

#include <algorithm>
#include <tuple>

namespace attend::cuda {
namespace {

// A copy costs about 1.2 us of enqueueing and set-up; at 55 GB/s that is the time of 64 KiB.
constexpr size_t kReadGap = size_t{64} << 10;

// Tensors are loaded and stored in 16-byte pieces; lse one float at a time.
constexpr size_t kVectorAlignment = 16;
constexpr size_t kFloatAlignment = 4;

constexpr int32_t kPageable = -1;  // the driver copies it on the host; any touching bytes may merge
constexpr int32_t kForeign = -2;   // page-locked by others, of unknown extent

constexpr size_t kAbsent = SIZE_MAX;

// How an output lies in memory.
enum class Layout {
  kDense,        // one piece
  kRowPitched,   // each row is one piece
  kHeadPitched,  // each head is one piece
  kGeneral,      // each row of each head is one piece
};

Layout LayoutOf(const TensorView& view) {
  const bool heads_touch = view.heads == 1 || view.head_stride == view.columns;
  if (heads_touch && (view.rows == 1 || view.row_stride == view.heads * view.columns)) {
    return Layout::kDense;
  }
  if (heads_touch) return Layout::kRowPitched;
  if (view.rows == 1 || view.row_stride == view.columns) return Layout::kHeadPitched;
  return Layout::kGeneral;
}

int32_t SlabOf(const std::byte* data, MemoryKind memory, const HostRanges& slabs) {
  auto after = std::upper_bound(
      slabs.begin(), slabs.end(), data,
      [](const std::byte* pointer, const HostRange& range) { return pointer < range.begin; });
  if (after != slabs.begin() && data < (after - 1)->end) {
    return static_cast<int32_t>(after - 1 - slabs.begin());
  }
  return memory == MemoryKind::kHost ? kPageable : kForeign;
}

size_t Bytes(int64_t elements, DType dtype) {
  return static_cast<size_t>(elements) * static_cast<size_t>(ByteSize(dtype));
}

// Bytes from the first element to the last of the first `rows` rows; 0 when there is none.
size_t Span(const TensorView& view, int64_t rows) {
  if (rows == 0 || view.heads == 0 || view.columns == 0) return 0;
  return Bytes((rows - 1) * view.row_stride + (view.heads - 1) * view.head_stride + view.columns,
               view.dtype);
}

size_t Span(const BiasView& bias, const AttentionTask& task) {
  if (bias.absent() || task.seqlen_q == 0 || task.seqlen_k == 0 || task.heads_q() == 0) return 0;
  return Bytes((task.heads_q() - 1) * bias.head_stride + (task.seqlen_q - 1) * bias.row_stride +
                   task.seqlen_k,
               bias.dtype);
}

Element ToElement(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return Element::kF32;
    case DType::kF16:
      return Element::kF16;
    case DType::kBF16:
      break;
  }
  return Element::kBF16;
}

template <typename Item>
void SortUnlessSorted(std::vector<Item>* items, bool (*less)(const Item&, const Item&)) {
  if (!std::is_sorted(items->begin(), items->end(), less)) {
    std::sort(items->begin(), items->end(), less);
  }
}

}  // namespace

void Placement::AddInput(const void* data, size_t bytes, MemoryKind memory, size_t slot,
                         const HostRanges& slabs) {
  if (bytes == 0 || data == nullptr || memory == MemoryKind::kDevice) return;
  const std::byte* begin = static_cast<const std::byte*>(data);
  inputs_.push_back({begin, begin + bytes, slot, SlabOf(begin, memory, slabs)});
}

void Placement::AddOutputs(const AttentionTask& task, size_t first_slot, const HostRanges& slabs) {
  const int64_t rows = task.padded_q();
  if (rows == 0 || task.heads_q() == 0) return;
  if (const TensorView& o = task.o; !o.absent() && o.memory != MemoryKind::kDevice) {
    Output output = {static_cast<std::byte*>(o.data),
                     0,
                     1,
                     0,
                     first_slot + kO,
                     SlabOf(static_cast<std::byte*>(o.data), o.memory, slabs),
                     kVectorAlignment};
    switch (LayoutOf(o)) {
      case Layout::kDense:
        output.width = Bytes(rows * o.heads * o.columns, o.dtype);
        break;
      case Layout::kRowPitched:
        output.width = Bytes(o.heads * o.columns, o.dtype);
        output.height = static_cast<size_t>(rows);
        output.pitch = Bytes(o.row_stride, o.dtype);
        break;
      case Layout::kHeadPitched:
        output.width = Bytes(rows * o.columns, o.dtype);
        output.height = static_cast<size_t>(o.heads);
        output.pitch = Bytes(o.head_stride, o.dtype);
        break;
      case Layout::kGeneral: {
        // Dense on the device, one copy a head.
        const size_t device_pitch = Bytes(o.heads * o.columns, o.dtype);
        const size_t offset = Reserve(device_pitch * static_cast<size_t>(rows));
        offsets_[output.slot] = offset;
        for (int64_t head = 0; head < o.heads; ++head) {
          copies_out_.push_back({output.host + Bytes(head * o.head_stride, o.dtype),
                                 offset + Bytes(head * o.columns, o.dtype),
                                 Bytes(o.columns, o.dtype), static_cast<size_t>(rows),
                                 Bytes(o.row_stride, o.dtype), device_pitch});
          bytes_out_ += copies_out_.back().bytes();
        }
        output.width = 0;
        break;
      }
    }
    if (output.width > 0) outputs_.push_back(output);
  }
  if (const LseView& lse = task.lse; !lse.absent() && lse.memory != MemoryKind::kDevice) {
    std::byte* const host = reinterpret_cast<std::byte*>(lse.data);
    Output output = {host,
                     Bytes(rows, DType::kF32),
                     static_cast<size_t>(task.heads_q()),
                     Bytes(lse.head_stride, DType::kF32),
                     first_slot + kLse,
                     SlabOf(host, lse.memory, slabs),
                     kFloatAlignment};
    if (output.height == 1 || output.pitch == output.width) {
      output.width *= output.height;
      output.height = 1;
      output.pitch = 0;
    }
    outputs_.push_back(output);
  }
}

size_t Placement::Reserve(size_t bytes) {
  const size_t offset = device_bytes_;
  device_bytes_ += (bytes + kDeviceAlignment - 1) / kDeviceAlignment * kDeviceAlignment;
  return offset;
}

void Placement::PlaceInputs() {
  SortUnlessSorted<Input>(&inputs_,
                          [](const Input& a, const Input& b) { return a.begin < b.begin; });
  for (size_t i = 0; i < inputs_.size();) {
    const Input& first = inputs_[i];
    const std::byte* end = first.end;
    size_t next = i + 1;
    for (; next < inputs_.size(); ++next) {
      const Input& input = inputs_[next];
      if (input.slab != first.slab) break;
      if (static_cast<size_t>(input.begin - first.begin) % kVectorAlignment != 0) break;
      // Extents that share bytes lie in one allocation, whoever made it.
      const bool near = input.slab >= 0           ? input.begin <= end + kReadGap
                        : input.slab == kPageable ? input.begin <= end
                                                  : input.begin < end;
      if (!near) break;
      end = std::max(end, input.end);
    }
    const size_t bytes = static_cast<size_t>(end - first.begin);
    const size_t offset = Reserve(bytes);
    for (size_t j = i; j < next; ++j) {
      offsets_[inputs_[j].slot] = offset + static_cast<size_t>(inputs_[j].begin - first.begin);
    }
    copies_in_.push_back({const_cast<std::byte*>(first.begin), offset, bytes, 1, bytes, bytes});
    bytes_in_ += bytes;
    i = next;
  }
}

void Placement::PlaceOutputs() {
  SortUnlessSorted<Output>(&outputs_, [](const Output& a, const Output& b) {
    return std::tie(a.pitch, a.height, a.host) < std::tie(b.pitch, b.height, b.host);
  });
  for (size_t i = 0; i < outputs_.size();) {
    const Output& first = outputs_[i];
    size_t width = first.width;
    size_t next = i + 1;
    for (; next < outputs_.size(); ++next) {
      const Output& output = outputs_[next];
      if (output.pitch != first.pitch || output.height != first.height) break;
      if (output.slab != first.slab || output.slab == kForeign) break;
      if (output.host != first.host + width || width % output.rest_alignment != 0) break;
      if (first.pitch != 0 && width + output.width > first.pitch) break;
      width += output.width;
    }
    const size_t offset = Reserve(width * first.height);
    for (size_t j = i; j < next; ++j) {
      const size_t slot = outputs_[j].slot;
      offsets_[slot] = offset + static_cast<size_t>(outputs_[j].host - first.host);
      out_pitch_[slot / kSlots * 2 + (slot % kSlots == kO ? 0 : 1)] = width;
    }
    // Lines that fill their pitch are one piece.
    const bool dense = first.height == 1 || width == first.pitch;
    Copy copy = {first.host, offset, width, first.height, first.pitch, width};
    if (dense)
      copy = {first.host,          offset, width * first.height, 1, width * first.height,
              width * first.height};
    bytes_out_ += copy.bytes();
    copies_out_.push_back(copy);
    i = next;
  }
}

void Placement::Plan(absl::Span<const AttentionTask> tasks, const HostRanges& slabs) {
  inputs_.clear();
  outputs_.clear();
  copies_in_.clear();
  copies_out_.clear();
  offsets_.assign(tasks.size() * kSlots, kAbsent);
  out_pitch_.assign(tasks.size() * 2, 0);
  bytes_in_ = bytes_out_ = device_bytes_ = 0;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const AttentionTask& task = tasks[i];
    const size_t slot = i * kSlots;
    AddInput(task.q.data, Span(task.q, task.seqlen_q), task.q.memory, slot + kQ, slabs);
    AddInput(task.k.data, Span(task.k, task.seqlen_k), task.k.memory, slot + kK, slabs);
    AddInput(task.v.data, Span(task.v, task.seqlen_k), task.v.memory, slot + kV, slabs);
    AddInput(task.bias.data, Span(task.bias, task), task.bias.memory, slot + kBias, slabs);
    const size_t heads_bytes = Bytes(task.heads_q(), DType::kF32);
    AddInput(task.alibi_slopes.data, heads_bytes, task.alibi_slopes.memory, slot + kAlibi, slabs);
    AddInput(task.sinks.data, heads_bytes, task.sinks.memory, slot + kSinks, slabs);
    AddOutputs(task, slot, slabs);
  }
  PlaceInputs();
  PlaceOutputs();
}

void Placement::Resolve(absl::Span<const AttentionTask> tasks, std::byte* base,
                        std::vector<DeviceTask>* placed) const {
  placed->resize(tasks.size());
  for (size_t i = 0; i < tasks.size(); ++i) {
    const AttentionTask& task = tasks[i];
    // Where `data` is for the device: in place, in our memory, or nowhere (an empty tensor).
    const auto locate = [&](const void* data, MemoryKind memory, Slot slot) -> void* {
      if (data == nullptr) return nullptr;
      if (memory == MemoryKind::kDevice) return const_cast<void*>(data);
      const size_t offset = offsets_[i * kSlots + slot];
      return offset == kAbsent ? nullptr : base + offset;
    };
    DeviceTask d = {};
    d.q = locate(task.q.data, task.q.memory, kQ);
    d.k = locate(task.k.data, task.k.memory, kK);
    d.v = locate(task.v.data, task.v.memory, kV);
    d.o = locate(task.o.data, task.o.memory, kO);
    d.lse = static_cast<float*>(locate(task.lse.data, task.lse.memory, kLse));
    d.bias = locate(task.bias.data, task.bias.memory, kBias);
    d.alibi_slopes =
        static_cast<float*>(locate(task.alibi_slopes.data, task.alibi_slopes.memory, kAlibi));
    d.sinks = static_cast<float*>(locate(task.sinks.data, task.sinks.memory, kSinks));

    d.q_row_stride = task.q.row_stride;
    d.q_head_stride = task.q.head_stride;
    d.k_row_stride = task.k.row_stride;
    d.k_head_stride = task.k.head_stride;
    d.v_row_stride = task.v.row_stride;
    d.v_head_stride = task.v.head_stride;
    d.o_row_stride = task.o.row_stride;
    d.o_head_stride = task.o.head_stride;
    d.lse_head_stride = task.lse.head_stride;
    if (task.o.memory != MemoryKind::kDevice) {
      const int64_t pitch = static_cast<int64_t>(out_pitch_[i * 2]) / ByteSize(task.o.dtype);
      const Layout layout = LayoutOf(task.o);
      d.o_row_stride = layout == Layout::kRowPitched    ? pitch
                       : layout == Layout::kHeadPitched ? task.o.columns
                                                        : task.o.heads * task.o.columns;
      d.o_head_stride = layout == Layout::kHeadPitched ? pitch : task.o.columns;
    }
    if (task.lse.memory != MemoryKind::kDevice && task.lse.head_stride != task.padded_q()) {
      d.lse_head_stride = static_cast<int64_t>(out_pitch_[i * 2 + 1] / sizeof(float));
    }
    d.bias_row_stride = task.bias.row_stride;
    d.bias_head_stride = task.bias.head_stride;

    d.seqlen_q = task.seqlen_q;
    d.seqlen_k = task.seqlen_k;
    d.padded_q = task.padded_q();
    d.window_left = std::min(task.mask.window_left.value_or(kUnbounded), kUnbounded);
    d.window_right = std::min(task.mask.window_right.value_or(kUnbounded), kUnbounded);
    if (task.mask.causal) d.window_right = std::min<int64_t>(d.window_right, 0);

    d.heads_q = static_cast<int32_t>(task.heads_q());
    d.heads_k = static_cast<int32_t>(task.heads_k());
    d.head_dim = static_cast<int32_t>(task.head_dim());
    d.head_dim_v = static_cast<int32_t>(task.head_dim_v());
    d.element = ToElement(task.dtype());
    d.bias_element = ToElement(task.bias.dtype);
    d.softmax_scale = task.softmax_scale;
    d.softcap = task.softcap;
    (*placed)[i] = d;
  }
}

}  // namespace attend::cuda
