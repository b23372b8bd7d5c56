#include "attend/internal/buffer_pool.h"

#include <bit>
#include <new>
#include <utility>

namespace attend::client {
namespace {

constexpr size_t kSmallest = size_t{64} << 10;  // below this a fresh allocation is as quick

struct Returner {
  std::shared_ptr<BufferPool> pool;
  BufferPool::Buffer buffer;
};

}  // namespace

// Eight sizes for each power of two: at most an eighth is wasted, and equal requests meet again.
size_t BufferPool::CapacityFor(size_t size) {
  if (size <= kSmallest) return kSmallest;
  const size_t step = size_t{1} << (static_cast<size_t>(std::bit_width(size)) - 4);
  return (size + step - 1) / step * step;
}

BufferPool::Buffer BufferPool::Take(size_t size) {
  const size_t capacity = CapacityFor(size);
  {
    std::lock_guard lock(mutex_);
    for (size_t i = idle_.size(); i-- > 0;) {
      if (idle_[i].capacity != capacity) continue;
      Buffer buffer = std::move(idle_[i]);
      idle_.erase(idle_.begin() + static_cast<std::ptrdiff_t>(i));
      idle_bytes_ -= buffer.capacity;
      return buffer;
    }
  }
  return {std::unique_ptr<std::byte[]>(new (std::nothrow) std::byte[capacity]), capacity};
}

void BufferPool::Give(Buffer buffer) {
  if (buffer.data == nullptr) return;
  std::vector<Buffer> dropped;  // freed outside the lock
  std::lock_guard lock(mutex_);
  if (buffer.capacity > max_idle_bytes_) return;
  idle_bytes_ += buffer.capacity;
  idle_.push_back(std::move(buffer));
  size_t drop = 0;
  while (idle_bytes_ > max_idle_bytes_) idle_bytes_ -= idle_[drop++].capacity;
  const auto end = idle_.begin() + static_cast<std::ptrdiff_t>(drop);
  dropped.assign(std::make_move_iterator(idle_.begin()), std::make_move_iterator(end));
  idle_.erase(idle_.begin(), end);
}

grpc::Slice BufferPool::ToSlice(Buffer buffer, size_t size) {
  std::byte* const data = buffer.data.get();
  auto* returner = new Returner{shared_from_this(), std::move(buffer)};
  return grpc::Slice(
      data, size,
      [](void* user_data) {
        std::unique_ptr<Returner> owner(static_cast<Returner*>(user_data));
        owner->pool->Give(std::move(owner->buffer));
      },
      returner);
}

size_t BufferPool::idle_bytes() const {
  std::lock_guard lock(mutex_);
  return idle_bytes_;
}

}  // namespace attend::client
