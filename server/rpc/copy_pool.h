// Threads that gather tensor bytes into staging, so that gRPC's threads never do.
//
// One thread copies about 9 GB/s; a large gather is cut into pieces that several threads copy at
// once. Which thread copies what has no influence on any result.

#ifndef ATTEND_SERVER_RPC_COPY_POOL_H_
#define ATTEND_SERVER_RPC_COPY_POOL_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "server/engine/mutex.h"
#include "server/rpc/wire_scan.h"

namespace attend {

// One copy. The source is only read; both must live until the gather's `done`.
struct CopyPiece {
  std::byte* to = nullptr;
  Fragment from;
};

class CopyPool {
 public:
  // A gather below this is copied by the caller: a hop to another thread costs more (about 10 us,
  // the time to copy 64 KiB).
  static constexpr size_t kInlineBytes = size_t{64} << 10;
  // Work of one turn of a thread: long enough to hide the hop, short enough to share.
  static constexpr size_t kChunkBytes = size_t{1} << 20;

  // REQUIRES: threads >= 1.
  explicit CopyPool(int threads);
  // Finishes what was handed over.
  ~CopyPool();
  CopyPool(const CopyPool&) = delete;
  CopyPool& operator=(const CopyPool&) = delete;

  // Copies all pieces, then calls `done` once: on a pool thread, or on the caller's before it
  // returns when the gather is small. Thread-safe.
  void Gather(std::vector<CopyPiece> pieces, std::function<void()> done);

 private:
  struct Job;
  struct Turn {
    Job* job = nullptr;
    size_t begin = 0, end = 0;  // pieces
  };

  void Work();

  Mutex mutex_;
  CondVar wake_;
  std::deque<Turn> turns_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace attend

#endif  // ATTEND_SERVER_RPC_COPY_POOL_H_
