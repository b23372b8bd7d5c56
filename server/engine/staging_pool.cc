#include "server/engine/staging_pool.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

#if defined(__SANITIZE_ADDRESS__)
#define ATTEND_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ATTEND_ASAN 1
#endif
#endif
#ifdef ATTEND_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace attend {
namespace {

// Smallest page of the hosts we know; touching more often than needed is harmless.
constexpr size_t kPageBytes = 4096;

void Poison([[maybe_unused]] const std::byte* data, [[maybe_unused]] size_t bytes) {
#ifdef ATTEND_ASAN
  __asan_poison_memory_region(data, bytes);
#endif
}

void Unpoison([[maybe_unused]] const std::byte* data, [[maybe_unused]] size_t bytes) {
#ifdef ATTEND_ASAN
  __asan_unpoison_memory_region(data, bytes);
#endif
}

// The first write to a page is slow: pay for it before the first client comes.
void Touch(const Staging& memory) {
  for (size_t i = 0; i < memory.size(); i += kPageBytes) memory.data()[i] = std::byte{0};
}

size_t RoundDown(size_t bytes) { return bytes / StagingPool::kAlignment * StagingPool::kAlignment; }

}  // namespace

StagingLease& StagingLease::operator=(StagingLease&& other) noexcept {
  if (this == &other) return *this;
  Release();
  pool_ = std::exchange(other.pool_, nullptr);
  data_ = std::exchange(other.data_, nullptr);
  size_ = std::exchange(other.size_, 0);
  slab_ = other.slab_;
  offset_ = other.offset_;
  return *this;
}

void StagingLease::Release() {
  if (pool_ != nullptr) pool_->Free(*this);
  pool_ = nullptr;
  data_ = nullptr;
  size_ = 0;
}

StagingPool::StagingPool(Backend* backend, const StagingPoolOptions& options)
    : backend_(backend), options_(options) {}

StagingPool::~StagingPool() {
  MutexLock lock(mutex_);
  while (!slabs_.empty()) RemoveSlab(slabs_.begin()->first);
}

absl::StatusOr<std::unique_ptr<StagingPool>> StagingPool::Create(
    Backend* backend, const StagingPoolOptions& options) {
  if (options.limit_bytes <= 0 || options.slab_bytes <= 0 || options.initial_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "staging: limit (", options.limit_bytes, ") and slab (", options.slab_bytes,
        ") must be positive and initial (", options.initial_bytes, ") must not be negative"));
  }
  std::unique_ptr<StagingPool> pool(new StagingPool(backend, options));
  const absl::Status status = pool->TakeInitial();
  if (!status.ok()) return status;
  return pool;
}

absl::Status StagingPool::TakeInitial() {
  // The kind is the backend's own; one small block tells it even when nothing is taken at start.
  absl::StatusOr<std::unique_ptr<Staging>> probe = FromHost(kAlignment);
  if (!probe.ok()) return probe.status();
  memory_kind_ = (*probe)->memory_kind();
  probe->reset();

  int64_t left = std::min(options_.initial_bytes, options_.limit_bytes);
  while (left >= static_cast<int64_t>(kAlignment)) {
    const int64_t bytes = std::min(left, options_.slab_bytes);
    absl::StatusOr<std::unique_ptr<Staging>> memory = FromHost(static_cast<size_t>(bytes));
    if (!memory.ok()) return memory.status();
    Touch(**memory);
    MutexLock lock(mutex_);
    reserved_ += static_cast<int64_t>((*memory)->size());
    AddSlab(*std::move(memory));
    left -= bytes;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Staging>> StagingPool::FromHost(size_t bytes) {
  absl::StatusOr<std::unique_ptr<Staging>> memory = backend_->AllocateStaging(bytes);
  if (!memory.ok()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot take ", bytes,
                     " bytes of staging memory from the host: ", memory.status().message()));
  }
  if (*memory == nullptr || (*memory)->size() < bytes ||
      reinterpret_cast<uintptr_t>((*memory)->data()) % kAlignment != 0) {
    return absl::InternalError("the backend's staging memory is too small or not aligned");
  }
  return memory;
}

void StagingPool::AddSlab(std::unique_ptr<Staging> memory) {
  const uint64_t id = next_slab_++;
  Slab& slab = slabs_[id];
  slab.memory = std::move(memory);
  const size_t size = RoundDown(slab.memory->size());
  Poison(slab.memory->data(), slab.memory->size());
  slab.blocks[0] = {size, true};
  free_.insert({size, id, 0});
}

std::unique_ptr<Staging> StagingPool::RemoveSlab(uint64_t id) {
  const auto found = slabs_.find(id);
  std::unique_ptr<Staging> memory = std::move(found->second.memory);
  for (const auto& [offset, block] : found->second.blocks) {
    if (block.free) free_.erase({block.size, id, offset});
  }
  slabs_.erase(found);
  Unpoison(memory->data(), memory->size());
  reserved_ -= static_cast<int64_t>(memory->size());
  return memory;
}

StagingLease StagingPool::TakeBlock(size_t block_bytes) {
  StagingLease lease;
  const auto found = free_.lower_bound({block_bytes, 0, 0});
  if (found == free_.end()) return lease;
  const FreeBlock chosen = *found;
  free_.erase(found);
  Slab& slab = slabs_.find(chosen.slab)->second;
  slab.blocks[chosen.offset] = {block_bytes, false};
  if (chosen.size > block_bytes) {
    const size_t rest = chosen.offset + block_bytes;
    slab.blocks[rest] = {chosen.size - block_bytes, true};
    free_.insert({chosen.size - block_bytes, chosen.slab, rest});
  }
  slab.used += block_bytes;
  slab.idle_since.reset();
  const int64_t used = used_ += static_cast<int64_t>(block_bytes);
  if (used > peak_) peak_ = used;
  lease.pool_ = this;
  lease.data_ = slab.memory->data() + chosen.offset;
  lease.slab_ = chosen.slab;
  lease.offset_ = chosen.offset;
  return lease;
}

void StagingPool::Free(const StagingLease& lease) {
  MutexLock lock(mutex_);
  Slab& slab = slabs_.find(lease.slab_)->second;
  auto block = slab.blocks.find(lease.offset_);
  Poison(lease.data_, block->second.size);
  used_ -= static_cast<int64_t>(block->second.size);
  slab.used -= block->second.size;
  block->second.free = true;
  const auto next = std::next(block);
  if (next != slab.blocks.end() && next->second.free) {
    free_.erase({next->second.size, lease.slab_, next->first});
    block->second.size += next->second.size;
    slab.blocks.erase(next);
  }
  if (block != slab.blocks.begin()) {
    const auto previous = std::prev(block);
    if (previous->second.free) {
      free_.erase({previous->second.size, lease.slab_, previous->first});
      previous->second.size += block->second.size;
      slab.blocks.erase(block);
      block = previous;
    }
  }
  free_.insert({block->second.size, lease.slab_, block->first});
}

std::vector<std::unique_ptr<Staging>> StagingPool::MakeRoom(int64_t bytes) {
  std::vector<std::unique_ptr<Staging>> removed;
  // Only when it helps: giving slabs back for a request that is refused anyway would just cost the
  // next one.
  int64_t unused = 0;
  for (const auto& [id, slab] : slabs_) {
    if (slab.used == 0) unused += static_cast<int64_t>(slab.memory->size());
  }
  if (options_.limit_bytes - reserved_ + unused < bytes) return removed;
  // Youngest first: the oldest are the initial ones.
  for (auto slab = slabs_.end();
       slab != slabs_.begin() && options_.limit_bytes - reserved_ < bytes;) {
    --slab;
    if (slab->second.used != 0) continue;
    const uint64_t id = slab->first;
    slab = std::next(slab);
    removed.push_back(RemoveSlab(id));
  }
  return removed;
}

absl::StatusOr<StagingLease> StagingPool::Allocate(size_t bytes) {
  if (bytes == 0) return StagingLease();
  const size_t limit = static_cast<size_t>(options_.limit_bytes);
  const auto no_room = [&] {
    return absl::ResourceExhaustedError(absl::StrCat("no room for ", bytes,
                                                     " bytes of staging memory: ", used_.load(),
                                                     " of ", limit, " are in use"));
  };
  if (bytes > limit) return no_room();
  const size_t block_bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;

  const auto finish = [&](StagingLease lease) {
    lease.size_ = bytes;
    Unpoison(lease.data_, bytes);
    return lease;
  };

  std::vector<std::unique_ptr<Staging>> removed;
  size_t slab_bytes = 0;
  {
    MutexLock lock(mutex_);
    while (true) {
      StagingLease lease = TakeBlock(block_bytes);
      if (lease.data_ != nullptr) return finish(std::move(lease));
      // One grows at a time: the others mostly fit into what it brings.
      if (!growing_) break;
      grown_.Wait(mutex_);
    }
    removed = MakeRoom(static_cast<int64_t>(block_bytes));
    const int64_t room = options_.limit_bytes - reserved_;
    if (room < static_cast<int64_t>(block_bytes)) return no_room();
    slab_bytes = std::max(block_bytes, std::min(static_cast<size_t>(options_.slab_bytes),
                                                RoundDown(static_cast<size_t>(room))));
    reserved_ += static_cast<int64_t>(slab_bytes);
    growing_ = true;
  }
  removed.clear();  // before asking the host for more
  absl::StatusOr<std::unique_ptr<Staging>> memory = FromHost(slab_bytes);

  MutexLock lock(mutex_);
  growing_ = false;
  grown_.NotifyAll();
  reserved_ -= static_cast<int64_t>(slab_bytes);
  if (!memory.ok()) return memory.status();
  reserved_ += static_cast<int64_t>((*memory)->size());
  AddSlab(*std::move(memory));
  return finish(TakeBlock(block_bytes));
}

void StagingPool::Trim(Clock::time_point now) {
  std::vector<std::unique_ptr<Staging>> removed;  // freed without the lock: it may be slow
  MutexLock lock(mutex_);
  for (auto slab = slabs_.end(); slab != slabs_.begin();) {
    --slab;
    if (slab->second.used != 0) continue;
    std::optional<Clock::time_point>& idle_since = slab->second.idle_since;
    if (!idle_since.has_value()) idle_since = now;
    const int64_t size = static_cast<int64_t>(slab->second.memory->size());
    if (now - *idle_since < options_.idle || reserved_ - size < options_.initial_bytes) continue;
    const uint64_t id = slab->first;
    slab = std::next(slab);
    removed.push_back(RemoveSlab(id));
  }
}

StagingStats StagingPool::stats() const {
  return {used_.load(), reserved_.load(), peak_.load(), options_.limit_bytes};
}

}  // namespace attend
