// Where the tensors of a batch go on the device, and with which few copies.
//
// A request's tensors usually lie one after another in a staging slab, and those of a padded batch
// in one tensor, so neighbouring extents become one copy. Two rules keep that harmless:
//   - An input copy may run over a gap only inside one slab of ours (all of it is mapped and
//     page-locked) and only when reading the gap is cheaper than another copy.
//   - An output copy writes output bytes and nothing else: no gap is ever written.
// Pure host arithmetic: no CUDA, tested without a device. Reuses its memory from batch to batch.

#ifndef ATTEND_KERNELS_CUDA_PLACEMENT_H_
#define ATTEND_KERNELS_CUDA_PLACEMENT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/attention.h"
#include "kernels/cuda/forward/device_task.h"
#include "kernels/cuda/pinned_memory.h"

namespace attend::cuda {

// `height` rows of `width` bytes. A height of 1 is one contiguous piece.
struct Copy {
  std::byte* host = nullptr;
  size_t device_offset = 0;  // from the start of the batch's device memory
  size_t width = 0;
  size_t height = 1;
  size_t host_pitch = 0;
  size_t device_pitch = 0;
  size_t bytes() const { return width * height; }
};

class Placement {
 public:
  // Lays out every tensor of `tasks` that is not on the device. `slabs` are the page-locked
  // allocations that exist now.
  void Plan(absl::Span<const AttentionTask> tasks, const HostRanges& slabs);

  const std::vector<Copy>& copies_in() const { return copies_in_; }
  const std::vector<Copy>& copies_out() const { return copies_out_; }
  size_t bytes_in() const { return bytes_in_; }
  size_t bytes_out() const { return bytes_out_; }

  // Device bytes of everything above, a multiple of kDeviceAlignment.
  size_t device_bytes() const { return device_bytes_; }

  // The tasks as the device sees them, with that memory at `base` (aligned to kDeviceAlignment).
  // `tasks` are those of Plan().
  void Resolve(absl::Span<const AttentionTask> tasks, std::byte* base,
               std::vector<DeviceTask>* placed) const;

 private:
  enum Slot { kQ, kK, kV, kBias, kAlibi, kSinks, kO, kLse, kSlots };

  struct Input {
    const std::byte* begin;
    const std::byte* end;
    size_t slot;
    int32_t slab;  // kPageable, kForeign or an index
  };
  struct Output {
    std::byte* host;
    size_t width, height, pitch;
    size_t slot;
    int32_t slab;
    size_t rest_alignment;  // that must hold for the tensors after the first
  };

  void AddInput(const void* data, size_t bytes, MemoryKind memory, size_t slot,
                const HostRanges& slabs);
  void AddOutputs(const AttentionTask& task, size_t first_slot, const HostRanges& slabs);
  void PlaceInputs();
  void PlaceOutputs();
  size_t Reserve(size_t bytes);

  std::vector<Input> inputs_;
  std::vector<Output> outputs_;
  std::vector<Copy> copies_in_;
  std::vector<Copy> copies_out_;
  std::vector<size_t> offsets_;  // device offset by task and slot
  std::vector<size_t>
      out_pitch_;  // bytes between the strided dimension's lines, o and lse of each task
  size_t bytes_in_ = 0;
  size_t bytes_out_ = 0;
  size_t device_bytes_ = 0;
};

inline constexpr size_t kDeviceAlignment = 256;

}  // namespace attend::cuda

#endif  // ATTEND_KERNELS_CUDA_PLACEMENT_H_
