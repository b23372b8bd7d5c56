// The batching policy, written from its description alone: plain lists, everything looked at anew
// for every question. Slow and simple; the batcher is checked against it.

#ifndef ATTEND_TESTS_SERVER_ENGINE_BATCHER_MODEL_H_
#define ATTEND_TESTS_SERVER_ENGINE_BATCHER_MODEL_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "server/engine/batcher.h"

namespace attend::testing {

class BatcherModel {
 public:
  explicit BatcherModel(const EngineOptions& options) : options_(options) {}

  bool Add(const BatcherRequest& request, Clock::time_point now) {
    if (static_cast<int64_t>(requests_.size()) >= options_.max_in_flight_requests) return false;
    Waiting waiting{request, now, std::vector<bool>(request.tasks.size(), false)};
    for (const TaskCost& task : request.tasks) {
      if (!HasClass(task.kernel_class.key)) class_since_[task.kernel_class.key] = now;
    }
    requests_.push_back(waiting);
    return true;
  }

  int64_t Remove(uint64_t sequence) {
    for (size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i].request.sequence != sequence) continue;
      const auto left = std::count(requests_[i].taken.begin(), requests_[i].taken.end(), false);
      requests_.erase(requests_.begin() + static_cast<std::ptrdiff_t>(i));
      return left;
    }
    return 0;
  }

  std::vector<uint64_t> Expire(Clock::time_point now) {
    std::vector<std::pair<Clock::time_point, uint64_t>> expired;
    for (const Waiting& waiting : requests_) {
      const auto deadline = waiting.request.deadline;
      if (deadline.has_value() && *deadline <= now) {
        expired.emplace_back(*deadline, waiting.request.sequence);
      }
    }
    std::sort(expired.begin(), expired.end());
    std::vector<uint64_t> sequences;
    for (const auto& [deadline, sequence] : expired) {
      sequences.push_back(sequence);
      Remove(sequence);
    }
    return sequences;
  }

  std::optional<Clock::time_point> NextDeadline() const {
    std::optional<Clock::time_point> next;
    for (const Waiting& waiting : requests_) {
      const auto deadline = waiting.request.deadline;
      if (deadline.has_value() && (!next.has_value() || *deadline < *next)) next = deadline;
    }
    return next;
  }

  Batch Take(Clock::time_point now) {
    Batch batch;
    std::optional<uint64_t> best_class;
    const Waiting* leader = nullptr;
    for (const uint64_t key : Classes()) {
      if (options_.batch_delay.count() > 0 && !Full(key)) {
        const Clock::time_point ready = class_since_[key] + options_.batch_delay;
        if (ready > now) {
          if (!batch.ready_at.has_value() || ready < *batch.ready_at) batch.ready_at = ready;
          continue;
        }
      }
      for (const Waiting& waiting : requests_) {
        if (!HasTask(waiting, key)) continue;
        if (leader == nullptr || Before(waiting, *leader, now)) {
          leader = &waiting;
          best_class = key;
        }
      }
    }
    if (!best_class.has_value()) return batch;
    batch.ready_at.reset();
    batch.kernel_class = KernelClass{*best_class};

    std::vector<Waiting*> order;
    for (Waiting& waiting : requests_) {
      if (HasTask(waiting, *best_class)) order.push_back(&waiting);
    }
    std::sort(order.begin(), order.end(),
              [&](const Waiting* a, const Waiting* b) { return Before(*a, *b, now); });
    double flops = 0;
    double bytes = 0;
    for (Waiting* waiting : order) {
      for (size_t i = 0; i < waiting->taken.size(); ++i) {
        const TaskCost& cost = waiting->request.tasks[i];
        if (waiting->taken[i] || cost.kernel_class.key != *best_class) continue;
        const bool fits =
            static_cast<int64_t>(batch.tasks.size()) + 1 <= options_.max_batch_tasks &&
            flops + cost.flops <= options_.max_batch_flops &&
            bytes + static_cast<double>(cost.bytes) <=
                static_cast<double>(options_.max_batch_bytes);
        if (!batch.tasks.empty() && !fits) {
          batch.reason = BatchReason::kFull;
          break;
        }
        flops += cost.flops;
        bytes += static_cast<double>(cost.bytes);
        waiting->taken[i] = true;
        batch.tasks.push_back({waiting->request.sequence, static_cast<int32_t>(i)});
      }
      if (batch.reason == BatchReason::kFull) break;
    }
    std::erase_if(requests_, [](const Waiting& waiting) {
      return std::find(waiting.taken.begin(), waiting.taken.end(), false) == waiting.taken.end();
    });
    return batch;
  }

  size_t requests() const { return requests_.size(); }

 private:
  struct Waiting {
    BatcherRequest request;
    Clock::time_point arrival;
    std::vector<bool> taken;
  };

  static bool HasTask(const Waiting& waiting, uint64_t key) {
    for (size_t i = 0; i < waiting.taken.size(); ++i) {
      if (!waiting.taken[i] && waiting.request.tasks[i].kernel_class.key == key) return true;
    }
    return false;
  }

  bool HasClass(uint64_t key) const {
    return std::any_of(requests_.begin(), requests_.end(),
                       [&](const Waiting& waiting) { return HasTask(waiting, key); });
  }

  std::vector<uint64_t> Classes() const {
    std::vector<uint64_t> keys;
    for (const auto& [key, since] : class_since_) {
      if (HasClass(key)) keys.push_back(key);
    }
    return keys;
  }

  bool Full(uint64_t key) const {
    int64_t tasks = 0;
    double flops = 0;
    double bytes = 0;
    for (const Waiting& waiting : requests_) {
      for (size_t i = 0; i < waiting.taken.size(); ++i) {
        const TaskCost& cost = waiting.request.tasks[i];
        if (waiting.taken[i] || cost.kernel_class.key != key) continue;
        ++tasks;
        flops += cost.flops;
        bytes += static_cast<double>(cost.bytes);
      }
    }
    return tasks >= options_.max_batch_tasks || flops >= options_.max_batch_flops ||
           bytes >= static_cast<double>(options_.max_batch_bytes);
  }

  bool Before(const Waiting& a, const Waiting& b, Clock::time_point now) const {
    const auto rank = [&](const Waiting& waiting) {
      const int64_t periods = (now - waiting.arrival) / Clock::duration(options_.ageing);
      const int64_t level = std::min<int64_t>(
          kPriorityCount - 1, static_cast<int64_t>(waiting.request.priority) + periods);
      const Clock::time_point usual = waiting.arrival + options_.default_slack;
      const Clock::time_point urgency = std::min(usual, waiting.request.deadline.value_or(usual));
      return std::make_tuple(-level, urgency, waiting.request.sequence);
    };
    return rank(a) < rank(b);
  }

  const EngineOptions options_;
  std::vector<Waiting> requests_;
  std::map<uint64_t, Clock::time_point> class_since_;  // when it last became non-empty
};

}  // namespace attend::testing

#endif  // ATTEND_TESTS_SERVER_ENGINE_BATCHER_MODEL_H_
