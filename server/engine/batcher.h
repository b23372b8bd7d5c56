// Which tasks run next: the queue and the batching policy, as a pure data structure.
//
// Time is an argument and nothing here locks, waits or calls back, so a test drives it by hand.
//
// Order. A request belongs to a level: its priority, raised by one for each `ageing` it has waited,
// up to the highest. The higher level goes first; within a level the earlier urgency, where
//     urgency = min(deadline, arrival + default_slack)
// so a far deadline never ranks a request behind one that names none; then first come, first
// served. No request starves: after (kPriorityCount - 1) * ageing it stands in the highest level,
// and there only those that come within default_slack of its own arrival, or bring a deadline
// earlier than its urgency, can pass it.
//
// Batch. The most urgent request leads; others of its KernelClass join in order until the next
// task would break a budget. Tasks of one request may leave in several batches, so a large request
// never blocks its class. One task larger than a whole budget makes a batch alone.
//
// Costs O(log n) for each request added, removed, promoted, expired or taken, and O(1) a task, plus
// O(classes waiting) a Take.

#ifndef ATTEND_SERVER_ENGINE_BATCHER_H_
#define ATTEND_SERVER_ENGINE_BATCHER_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "server/engine/engine_observer.h"
#include "server/engine/engine_options.h"
#include "server/engine/request.h"
#include "server/engine/task_cost.h"

namespace attend {

// What the batcher knows of a request. `sequence` is unique and grows with arrival.
struct BatcherRequest {
  uint64_t sequence = 0;
  Priority priority = Priority::kNormal;
  std::optional<Clock::time_point> deadline;
  std::vector<TaskCost> tasks;  // not empty
};

// One task of a batch: tasks[index] of the request `sequence`.
struct TaskRef {
  uint64_t sequence = 0;
  int32_t index = 0;
  friend bool operator==(const TaskRef&, const TaskRef&) = default;
};

struct Batch {
  KernelClass kernel_class;
  BatchReason reason = BatchReason::kDrained;
  std::vector<TaskRef> tasks;  // those of one request stand together
  // Tasks were waiting, but batch_delay has not passed: look again at this time. Set only when
  // `tasks` is empty.
  std::optional<Clock::time_point> ready_at;
};

// Not thread-safe: guarded by the mutex of its engine.
class Batcher {
 public:
  explicit Batcher(const EngineOptions& options);
  Batcher(const Batcher&) = delete;
  Batcher& operator=(const Batcher&) = delete;

  // False, and nothing is queued, when max_in_flight_requests are waiting already.
  bool Add(BatcherRequest request, Clock::time_point now);

  // Takes every task still queued out and returns how many those were; 0 when it is not here.
  int64_t Remove(uint64_t sequence);

  // Removes requests whose deadline is not after `now` and appends them to `expired`; returns the
  // next time to look. Tasks that have left in a batch are not called back.
  std::optional<Clock::time_point> Expire(Clock::time_point now, std::vector<uint64_t>* expired);

  // Fills `batch`, reusing its memory; leaves `tasks` empty when nothing is ready. Call Expire
  // first: Take does not look at deadlines.
  void Take(Clock::time_point now, Batch* batch);

  size_t requests() const { return entries_.size(); }
  bool empty() const { return entries_.empty(); }

 private:
  // Position in a queue: smaller goes first.
  struct Rank {
    int level = 0;  // 0 is the highest
    Clock::time_point urgency;
    uint64_t sequence = 0;
    // NOLINTNEXTLINE(modernize-use-nullptr): the check takes the default for a literal 0
    friend auto operator<=>(const Rank&, const Rank&) = default;
  };
  // The tasks of one request that share a class.
  struct Part {
    KernelClass kernel_class;
    std::vector<int32_t> tasks;
    size_t next = 0;  // tasks before it have left
  };
  struct Entry {
    BatcherRequest request;
    Rank rank;
    std::optional<Clock::time_point> promotion;  // when it gains a level
    std::vector<Part> parts;                     // those with tasks left stand in their class queue
    size_t parts_left = 0;
  };
  struct ClassQueue {
    std::map<Rank, std::pair<Entry*, Part*>> parts;
    int64_t tasks = 0;  // sums over what waits
    double bytes = 0;
    double flops = 0;
    Clock::time_point waiting_since;  // start of batch_delay
  };
  using ClassQueues = std::map<uint64_t, ClassQueue>;
  using Timed = std::pair<Clock::time_point, uint64_t>;  // and a sequence

  void Promote(Clock::time_point now);
  bool BudgetReached(const ClassQueue& queue) const;
  // The queue to take from, or end() and the time when one will be ready.
  ClassQueues::iterator Choose(Clock::time_point now, std::optional<Clock::time_point>* ready_at);
  void Enqueue(Entry* entry, Part* part, Clock::time_point now);
  // Forgets the tasks of `part` that are still queued; returns how many.
  int64_t Dequeue(const Entry& entry, Part* part);
  void Erase(std::unordered_map<uint64_t, Entry>::iterator entry);

  const EngineOptions options_;
  std::unordered_map<uint64_t, Entry> entries_;  // by sequence; addresses are stable
  ClassQueues classes_;                          // by KernelClass::key; none is empty
  std::set<Timed> deadlines_;
  std::set<Timed> promotions_;
};

}  // namespace attend

#endif  // ATTEND_SERVER_ENGINE_BATCHER_H_
