// One slab allocator of staging memory with a byte budget: the admission control of large data.
//
// Slabs come from Backend::AllocateStaging. Inside a slab, free blocks are kept by size (best fit)
// and merged with their neighbours when given back. A request larger than a slab gets a slab of its
// own size. Freed slabs stay for the next request: one is given back to the host when room is
// needed for a slab of another size, or when it has been idle for long and more than the initial
// bytes are held.
//
// Under AddressSanitizer the memory of a lease that has ended is poisoned.

#ifndef ATTEND_SERVER_ENGINE_STAGING_POOL_H_
#define ATTEND_SERVER_ENGINE_STAGING_POOL_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "server/engine/mutex.h"
#include "server/engine/request.h"

namespace attend {

struct StagingPoolOptions {
  int64_t limit_bytes = 0;                          // most that may be reserved
  int64_t slab_bytes = 0;                           // > 0
  int64_t initial_bytes = 0;                        // taken and touched at start, kept to the end
  Clock::duration idle = std::chrono::seconds(30);  // how long an unused slab is kept
};

// Bytes.
struct StagingStats {
  int64_t used = 0;      // in leases
  int64_t reserved = 0;  // held from the host
  int64_t peak = 0;      // highest `used` so far
  int64_t limit = 0;
};

class StagingPool;

// A block of the pool. Move-only; destruction gives it back. The pool must outlive it.
class StagingLease {
 public:
  StagingLease() = default;  // empty
  StagingLease(StagingLease&& other) noexcept { *this = std::move(other); }
  StagingLease& operator=(StagingLease&& other) noexcept;
  ~StagingLease() { Release(); }

  std::byte* data() const { return data_; }  // 256-byte aligned; null when size() is 0
  size_t size() const { return size_; }      // as asked for

 private:
  friend class StagingPool;
  void Release();

  StagingPool* pool_ = nullptr;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  uint64_t slab_ = 0;
  size_t offset_ = 0;
};

// Thread-safe. Allocations from held slabs cost O(log blocks) under a mutex; growing calls the
// backend without it.
class StagingPool {
 public:
  static constexpr size_t kAlignment = 256;

  // `backend` outlives the pool. Takes the initial bytes.
  static absl::StatusOr<std::unique_ptr<StagingPool>> Create(Backend* backend,
                                                             const StagingPoolOptions& options);
  // REQUIRES: every lease has ended.
  ~StagingPool();
  StagingPool(const StagingPool&) = delete;
  StagingPool& operator=(const StagingPool&) = delete;

  // RESOURCE_EXHAUSTED when the budget has no room, or with the backend's words when the host had
  // none.
  absl::StatusOr<StagingLease> Allocate(size_t bytes);

  // Gives slabs back that were unused at `now` and at a Trim at least `idle` before. Call it a few
  // times per `idle`.
  void Trim(Clock::time_point now);

  MemoryKind memory_kind() const { return memory_kind_; }
  StagingStats stats() const;  // from atomics

 private:
  friend class StagingLease;

  struct Block {
    size_t size = 0;
    bool free = false;
  };
  struct Slab {
    std::unique_ptr<Staging> memory;
    std::map<size_t, Block> blocks;  // by offset; they cover the slab, no two neighbours are free
    size_t used = 0;
    std::optional<Clock::time_point> idle_since;
  };
  // Ordered by size, then age of the slab: the oldest slabs fill first and the youngest run empty.
  struct FreeBlock {
    size_t size = 0;
    uint64_t slab = 0;
    size_t offset = 0;
    // NOLINTNEXTLINE(modernize-use-nullptr): the check takes the default for a literal 0
    friend auto operator<=>(const FreeBlock&, const FreeBlock&) = default;
  };

  StagingPool(Backend* backend, const StagingPoolOptions& options);
  absl::Status TakeInitial();
  absl::StatusOr<std::unique_ptr<Staging>> FromHost(size_t bytes);
  void AddSlab(std::unique_ptr<Staging> memory) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::unique_ptr<Staging> RemoveSlab(uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // An empty lease when no free block is large enough.
  StagingLease TakeBlock(size_t block_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Removes unused slabs until `bytes` more may be reserved.
  std::vector<std::unique_ptr<Staging>> MakeRoom(int64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Free(const StagingLease& lease);

  Backend* const backend_;
  const StagingPoolOptions options_;
  MemoryKind memory_kind_ = MemoryKind::kHost;  // constant after Create

  mutable Mutex mutex_;
  CondVar grown_;
  bool growing_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t next_slab_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<uint64_t, Slab> slabs_ ABSL_GUARDED_BY(mutex_);
  std::set<FreeBlock> free_ ABSL_GUARDED_BY(mutex_);

  // Written under mutex_, read anywhere.
  std::atomic<int64_t> used_{0};
  std::atomic<int64_t> reserved_{0};
  std::atomic<int64_t> peak_{0};
};

}  // namespace attend

#endif  // ATTEND_SERVER_ENGINE_STAGING_POOL_H_
