// Send buffers that are used again, so that their pages are touched once.
//
// A fresh buffer of a few MiB costs more in page faults than in copying. Thread-safe. Buffers
// may outlive whoever took them: gRPC lets go of a message when its bytes have left, which may be
// after the call has ended.

#ifndef ATTEND_CLIENT_INTERNAL_BUFFER_POOL_H_
#define ATTEND_CLIENT_INTERNAL_BUFFER_POOL_H_

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include <grpcpp/support/slice.h>

namespace attend::client {

class BufferPool : public std::enable_shared_from_this<BufferPool> {
 public:
  struct Buffer {
    std::unique_ptr<std::byte[]> data;
    size_t capacity = 0;
  };

  // Keeps at most `max_idle_bytes` while nobody uses them.
  explicit BufferPool(size_t max_idle_bytes) : max_idle_bytes_(max_idle_bytes) {}

  // At least `size` bytes, uninitialised. Null data when the host has no memory.
  Buffer Take(size_t size);
  void Give(Buffer buffer);

  // The first `size` bytes of `buffer` as a slice that gives the buffer back when gRPC drops it.
  grpc::Slice ToSlice(Buffer buffer, size_t size);

  size_t idle_bytes() const;

 private:
  static size_t CapacityFor(size_t size);

  const size_t max_idle_bytes_;
  mutable std::mutex mutex_;
  std::vector<Buffer> idle_;  // guarded by mutex_; the most recently used is last
  size_t idle_bytes_ = 0;     // guarded by mutex_
};

}  // namespace attend::client

#endif  // ATTEND_CLIENT_INTERNAL_BUFFER_POOL_H_
