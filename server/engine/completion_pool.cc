#include "server/engine/completion_pool.h"

#include <algorithm>
#include <utility>

namespace attend {

CompletionPool::CompletionPool(int threads) {
  threads_.reserve(static_cast<size_t>(std::max(threads, 1)));
  for (int i = 0; i < std::max(threads, 1); ++i) threads_.emplace_back([this] { Loop(); });
}

CompletionPool::~CompletionPool() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  changed_.NotifyAll();
  for (std::thread& thread : threads_) thread.join();
}

void CompletionPool::Post(Work work) {
  {
    MutexLock lock(mutex_);
    queue_.push_back(std::move(work));
  }
  changed_.NotifyOne();
}

void CompletionPool::Loop() {
  while (true) {
    Work work;
    {
      MutexLock lock(mutex_);
      while (queue_.empty() && !stopping_) changed_.Wait(mutex_);
      if (queue_.empty()) return;
      work = std::move(queue_.front());
      queue_.pop_front();
    }
    std::move(work)();
  }
}

}  // namespace attend
