// A thread that does something now and then.

#ifndef ATTEND_SERVER_OPS_PERIODIC_H_
#define ATTEND_SERVER_OPS_PERIODIC_H_

#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "server/engine/mutex.h"

namespace attend {

class Periodic {
 public:
  // First after one interval.
  Periodic(std::chrono::milliseconds interval, std::function<void()> what)
      : interval_(interval), what_(std::move(what)), thread_([this] { Run(); }) {}
  // Waits for a call in progress.
  ~Periodic() {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
    }
    wake_.NotifyAll();
    thread_.join();
  }
  Periodic(const Periodic&) = delete;
  Periodic& operator=(const Periodic&) = delete;

 private:
  void Run() {
    while (WaitOut()) what_();
  }
  // False when it is time to stop.
  bool WaitOut() {
    const auto until = std::chrono::steady_clock::now() + interval_;
    MutexLock lock(mutex_);
    while (!stopping_ && std::chrono::steady_clock::now() < until) wake_.WaitUntil(mutex_, until);
    return !stopping_;
  }

  const std::chrono::milliseconds interval_;
  const std::function<void()> what_;
  Mutex mutex_;
  CondVar wake_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the others
};

}  // namespace attend

#endif  // ATTEND_SERVER_OPS_PERIODIC_H_
