// Device memory: one arena an executor, all of them within one limit.
//
// A batch takes one block for everything it needs (tensors, plan, workspace) and gives it back when
// it has ended. The block stays with its arena, so a warm executor allocates nothing. When an arena
// must grow and the limit is reached, idle arenas give their blocks up; when only busy ones are
// left, it waits for them. Nobody holds a block while waiting, so there is no deadlock.

#ifndef ATTEND_KERNELS_CUDA_DEVICE_MEMORY_H_
#define ATTEND_KERNELS_CUDA_DEVICE_MEMORY_H_

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace attend::cuda {

// Where blocks come from; replaced in tests. Called with the device current, under a lock.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  virtual absl::StatusOr<std::byte*> Allocate(size_t bytes) = 0;  // RESOURCE_EXHAUSTED: no more
  virtual void Free(std::byte* block) = 0;
};

class DeviceArena;

// All arenas of one device. Thread-safe; must outlive its arenas.
class DeviceMemory {
 public:
  // `limit`: most bytes reserved at any time.
  DeviceMemory(std::unique_ptr<BlockSource> source, int64_t limit);
  ~DeviceMemory();

  std::unique_ptr<DeviceArena> MakeArena();

  // `total` and `free` are left 0: only the device knows them.
  DeviceMemoryStats Stats() const;

 private:
  friend class DeviceArena;

  absl::StatusOr<std::byte*> Acquire(DeviceArena* arena, size_t bytes);
  void Release(DeviceArena* arena);
  void Remove(DeviceArena* arena);

  // All REQUIRE mutex_.
  void FreeBlock(DeviceArena* arena);
  bool FreeLargestIdleBlock();
  bool AnyInUse() const;

  const std::unique_ptr<BlockSource> source_;
  const int64_t limit_;

  mutable std::mutex mutex_;
  std::condition_variable released_;
  std::vector<DeviceArena*> arenas_;  // these four guarded by mutex_
  int64_t reserved_ = 0;
  int64_t used_ = 0;
  int64_t peak_ = 0;
};

// The memory of one executor; single-threaded. Its state is guarded by the mutex of DeviceMemory.
class DeviceArena {
 public:
  ~DeviceArena() { memory_->Remove(this); }
  DeviceArena(const DeviceArena&) = delete;
  DeviceArena& operator=(const DeviceArena&) = delete;

  // `bytes` aligned to 256, valid until Release(). Its content is arbitrary. RESOURCE_EXHAUSTED
  // when `bytes` is above the limit or the device itself has no more.
  // REQUIRES: nothing is acquired.
  absl::StatusOr<std::byte*> Acquire(size_t bytes) { return memory_->Acquire(this, bytes); }

  // REQUIRES: no work that uses the block is in flight.
  void Release() { memory_->Release(this); }

 private:
  friend class DeviceMemory;
  explicit DeviceArena(DeviceMemory* memory) : memory_(memory) {}

  DeviceMemory* const memory_;
  std::byte* block_ = nullptr;
  int64_t capacity_ = 0;
  int64_t in_use_ = 0;  // bytes acquired; 0 when idle
};

}  // namespace attend::cuda

#endif  // ATTEND_KERNELS_CUDA_DEVICE_MEMORY_H_
