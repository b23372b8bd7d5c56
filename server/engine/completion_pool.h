// The threads that call back: a slow callback never holds a stream or a lock.

#ifndef ATTEND_SERVER_ENGINE_COMPLETION_POOL_H_
#define ATTEND_SERVER_ENGINE_COMPLETION_POOL_H_

#include <deque>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "server/engine/mutex.h"

namespace attend {

// Thread-safe. Work starts in the order in which it was posted. The queue has no bound of its own:
// each request posts once, and admission bounds the requests.
class CompletionPool {
 public:
  using Work = absl::AnyInvocable<void() &&>;

  explicit CompletionPool(int threads);
  // Runs what has been posted, then joins. REQUIRES: not called from one of its own threads.
  ~CompletionPool();
  CompletionPool(const CompletionPool&) = delete;
  CompletionPool& operator=(const CompletionPool&) = delete;

  // REQUIRES: destruction has not begun, unless called by work of this pool.
  void Post(Work work);

 private:
  void Loop();

  Mutex mutex_;
  CondVar changed_;
  std::deque<Work> queue_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;  // constant after construction
};

}  // namespace attend

#endif  // ATTEND_SERVER_ENGINE_COMPLETION_POOL_H_
