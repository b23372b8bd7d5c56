#include "kernels/cuda/device_memory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace attend::cuda {
namespace {

// The granularity in which a device hands out memory; smaller requests would waste the rest.
constexpr int64_t kGranularity = int64_t{2} << 20;

int64_t RoundUp(int64_t bytes) { return (bytes + kGranularity - 1) / kGranularity * kGranularity; }

}  // namespace

DeviceMemory::DeviceMemory(std::unique_ptr<BlockSource> source, int64_t limit)
    : source_(std::move(source)), limit_(limit) {}

DeviceMemory::~DeviceMemory() = default;

std::unique_ptr<DeviceArena> DeviceMemory::MakeArena() {
  std::unique_ptr<DeviceArena> arena(new DeviceArena(this));
  const std::lock_guard<std::mutex> lock(mutex_);
  arenas_.push_back(arena.get());
  return arena;
}

DeviceMemoryStats DeviceMemory::Stats() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  DeviceMemoryStats stats;
  stats.used = used_;
  stats.reserved = reserved_;
  stats.peak = peak_;
  stats.limit = limit_;
  return stats;
}

absl::StatusOr<std::byte*> DeviceMemory::Acquire(DeviceArena* arena, size_t bytes) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (bytes > static_cast<size_t>(limit_)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the batch needs ", bytes, " bytes of device memory; the limit is ", limit_));
  }
  const int64_t wanted = std::max<int64_t>(static_cast<int64_t>(bytes), 1);
  while (arena->capacity_ < wanted) {
    FreeBlock(arena);
    // A quarter more than asked, so that slowly growing batches do not grow the arena each time.
    int64_t size = RoundUp(wanted + wanted / 4);
    if (reserved_ + size > limit_) size = wanted;
    while (reserved_ + size > limit_ && FreeLargestIdleBlock()) {
    }
    if (reserved_ + size <= limit_) {
      absl::StatusOr<std::byte*> block = source_->Allocate(static_cast<size_t>(size));
      if (!block.ok() && size > wanted) {
        size = wanted;
        block = source_->Allocate(static_cast<size_t>(size));
      }
      if (block.ok()) {
        arena->block_ = *block;
        arena->capacity_ = size;
        reserved_ += size;
        continue;
      }
      if (!absl::IsResourceExhausted(block.status())) return block.status();
      if (FreeLargestIdleBlock()) continue;
      if (!AnyInUse()) return block.status();
    }
    released_.wait(lock);
  }
  arena->in_use_ = wanted;
  used_ += wanted;
  peak_ = std::max(peak_, used_);
  return arena->block_;
}

void DeviceMemory::Release(DeviceArena* arena) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    used_ -= arena->in_use_;
    arena->in_use_ = 0;
  }
  released_.notify_all();
}

void DeviceMemory::Remove(DeviceArena* arena) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    used_ -= arena->in_use_;
    arena->in_use_ = 0;
    FreeBlock(arena);
    arenas_.erase(std::find(arenas_.begin(), arenas_.end(), arena));
  }
  released_.notify_all();
}

void DeviceMemory::FreeBlock(DeviceArena* arena) {
  if (arena->block_ == nullptr) return;
  source_->Free(arena->block_);
  reserved_ -= arena->capacity_;
  arena->block_ = nullptr;
  arena->capacity_ = 0;
}

bool DeviceMemory::FreeLargestIdleBlock() {
  DeviceArena* largest = nullptr;
  for (DeviceArena* arena : arenas_) {
    if (arena->in_use_ > 0 || arena->block_ == nullptr) continue;
    if (largest == nullptr || arena->capacity_ > largest->capacity_) largest = arena;
  }
  if (largest == nullptr) return false;
  FreeBlock(largest);
  return true;
}

bool DeviceMemory::AnyInUse() const {
  return std::any_of(arenas_.begin(), arenas_.end(),
                     [](const DeviceArena* arena) { return arena->in_use_ > 0; });
}

}  // namespace attend::cuda
