#include "server/engine/batcher.h"

#include <algorithm>

namespace attend {
namespace {

int LevelOf(Priority priority) { return kPriorityCount - 1 - static_cast<int>(priority); }

}  // namespace

Batcher::Batcher(const EngineOptions& options) : options_(options) {}

bool Batcher::Add(BatcherRequest request, Clock::time_point now) {
  if (entries_.size() >= static_cast<size_t>(options_.max_in_flight_requests)) return false;
  const uint64_t sequence = request.sequence;
  Entry& entry = entries_[sequence];
  entry.request = std::move(request);
  entry.rank.level = LevelOf(entry.request.priority);
  entry.rank.urgency = now + options_.default_slack;
  entry.rank.sequence = sequence;
  if (entry.request.deadline.has_value()) {
    entry.rank.urgency = std::min(entry.rank.urgency, *entry.request.deadline);
    deadlines_.emplace(*entry.request.deadline, sequence);
  }
  if (entry.rank.level > 0) {
    entry.promotion = now + options_.ageing;
    promotions_.emplace(*entry.promotion, sequence);
  }
  const std::vector<TaskCost>& tasks = entry.request.tasks;
  Part* part = nullptr;
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (part == nullptr || part->kernel_class != tasks[i].kernel_class) {
      const auto found = std::find_if(
          entry.parts.begin(), entry.parts.end(),
          [&](const Part& candidate) { return candidate.kernel_class == tasks[i].kernel_class; });
      if (found != entry.parts.end()) {
        part = &*found;
      } else {
        part = &entry.parts.emplace_back();
        part->kernel_class = tasks[i].kernel_class;
        if (entry.parts.size() == 1) part->tasks.reserve(tasks.size());
      }
    }
    part->tasks.push_back(static_cast<int32_t>(i));
  }
  entry.parts_left = entry.parts.size();
  for (Part& queued : entry.parts) Enqueue(&entry, &queued, now);
  return true;
}

void Batcher::Enqueue(Entry* entry, Part* part, Clock::time_point now) {
  ClassQueue& queue = classes_[part->kernel_class.key];
  if (queue.parts.empty()) queue.waiting_since = now;
  queue.parts.emplace(entry->rank, std::make_pair(entry, part));
  for (const int32_t task : part->tasks) {
    const TaskCost& cost = entry->request.tasks[static_cast<size_t>(task)];
    queue.flops += cost.flops;
    queue.bytes += static_cast<double>(cost.bytes);
  }
  queue.tasks += static_cast<int64_t>(part->tasks.size());
}

int64_t Batcher::Dequeue(const Entry& entry, Part* part) {
  const int64_t left = static_cast<int64_t>(part->tasks.size() - part->next);
  if (left == 0) return 0;
  const auto found = classes_.find(part->kernel_class.key);
  ClassQueue& queue = found->second;
  queue.parts.erase(entry.rank);
  for (; part->next < part->tasks.size(); ++part->next) {
    const TaskCost& cost = entry.request.tasks[static_cast<size_t>(part->tasks[part->next])];
    queue.flops -= cost.flops;
    queue.bytes -= static_cast<double>(cost.bytes);
  }
  queue.tasks -= left;
  if (queue.parts.empty()) classes_.erase(found);
  return left;
}

void Batcher::Erase(std::unordered_map<uint64_t, Entry>::iterator entry) {
  const Entry& gone = entry->second;
  if (gone.request.deadline.has_value()) {
    deadlines_.erase({*gone.request.deadline, gone.request.sequence});
  }
  if (gone.promotion.has_value()) promotions_.erase({*gone.promotion, gone.request.sequence});
  entries_.erase(entry);
}

int64_t Batcher::Remove(uint64_t sequence) {
  const auto found = entries_.find(sequence);
  if (found == entries_.end()) return 0;
  int64_t removed = 0;
  for (Part& part : found->second.parts) removed += Dequeue(found->second, &part);
  Erase(found);
  return removed;
}

std::optional<Clock::time_point> Batcher::Expire(Clock::time_point now,
                                                 std::vector<uint64_t>* expired) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const uint64_t sequence = deadlines_.begin()->second;
    expired->push_back(sequence);
    Remove(sequence);
  }
  if (deadlines_.empty()) return std::nullopt;
  return deadlines_.begin()->first;
}

void Batcher::Promote(Clock::time_point now) {
  while (!promotions_.empty() && promotions_.begin()->first <= now) {
    auto promotion = promotions_.extract(promotions_.begin());
    Entry& entry = entries_.find(promotion.value().second)->second;
    const Rank old_rank = entry.rank;
    // However long nobody looked, each period counts.
    while (entry.rank.level > 0 && *entry.promotion <= now) {
      --entry.rank.level;
      *entry.promotion += options_.ageing;
    }
    for (const Part& part : entry.parts) {
      if (part.next == part.tasks.size()) continue;
      auto& parts = classes_.find(part.kernel_class.key)->second.parts;
      auto node = parts.extract(old_rank);
      node.key() = entry.rank;
      parts.insert(std::move(node));
    }
    if (entry.rank.level > 0) {
      promotion.value().first = *entry.promotion;
      promotions_.insert(std::move(promotion));
    } else {
      entry.promotion.reset();
    }
  }
}

bool Batcher::BudgetReached(const ClassQueue& queue) const {
  return queue.tasks >= options_.max_batch_tasks || queue.flops >= options_.max_batch_flops ||
         queue.bytes >= static_cast<double>(options_.max_batch_bytes);
}

Batcher::ClassQueues::iterator Batcher::Choose(Clock::time_point now,
                                               std::optional<Clock::time_point>* ready_at) {
  auto chosen = classes_.end();
  for (auto candidate = classes_.begin(); candidate != classes_.end(); ++candidate) {
    const ClassQueue& queue = candidate->second;
    if (options_.batch_delay.count() > 0 && !BudgetReached(queue)) {
      const Clock::time_point ready = queue.waiting_since + options_.batch_delay;
      if (ready > now) {
        if (!ready_at->has_value() || ready < **ready_at) *ready_at = ready;
        continue;
      }
    }
    if (chosen == classes_.end() ||
        queue.parts.begin()->first < chosen->second.parts.begin()->first) {
      chosen = candidate;
    }
  }
  return chosen;
}

void Batcher::Take(Clock::time_point now, Batch* batch) {
  batch->tasks.clear();
  batch->ready_at.reset();
  batch->reason = BatchReason::kDrained;
  Promote(now);
  std::optional<Clock::time_point> ready_at;
  const auto chosen = Choose(now, &ready_at);
  if (chosen == classes_.end()) {
    batch->ready_at = ready_at;
    return;
  }
  batch->kernel_class = KernelClass{chosen->first};
  ClassQueue& queue = chosen->second;
  double flops = 0;
  double bytes = 0;
  while (!queue.parts.empty()) {
    const auto head = queue.parts.begin();
    const auto [entry, part] = head->second;
    for (; part->next < part->tasks.size(); ++part->next) {
      const int32_t index = part->tasks[part->next];
      const TaskCost& cost = entry->request.tasks[static_cast<size_t>(index)];
      const double cost_bytes = static_cast<double>(cost.bytes);
      if (!batch->tasks.empty() &&
          (static_cast<int64_t>(batch->tasks.size()) >= options_.max_batch_tasks ||
           flops + cost.flops > options_.max_batch_flops ||
           bytes + cost_bytes > static_cast<double>(options_.max_batch_bytes))) {
        batch->reason = BatchReason::kFull;
        break;
      }
      flops += cost.flops;
      bytes += cost_bytes;
      batch->tasks.push_back({entry->request.sequence, index});
      queue.flops -= cost.flops;
      queue.bytes -= cost_bytes;
      --queue.tasks;
    }
    if (part->next < part->tasks.size()) break;
    queue.parts.erase(head);
    if (--entry->parts_left == 0) Erase(entries_.find(entry->request.sequence));
  }
  if (queue.parts.empty()) classes_.erase(chosen);
}

}  // namespace attend
