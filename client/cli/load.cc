#include "cli/load.h"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>

#include "cli/command.h"

namespace attend::cli {
namespace {

using SteadyClock = std::chrono::steady_clock;
using std::chrono::nanoseconds;

constexpr std::chrono::milliseconds kShowEvery(200);

double Seconds(nanoseconds time) { return std::chrono::duration<double>(time).count(); }

// A place in flight with the memory of its answer, used again and again.
struct Slot {
  std::vector<std::byte> o;
};

struct Job {
  uint64_t number = 0;  // of this run
  SteadyClock::time_point scheduled;
  std::unique_ptr<Slot> slot;
};

class Run {
 public:
  Run(client::Client& client, const Workload& workload, const LoadOptions& options)
      : client_(client), workload_(workload), options_(options), start_(SteadyClock::now()) {
    for (int64_t i = 0; i < options.in_flight; ++i) free_.push_back(std::make_unique<Slot>());
  }

  LoadResult Go(const std::function<void(const Progress&)>& show) {
    std::vector<std::thread> senders;
    senders.reserve(static_cast<size_t>(options_.senders));
    for (int i = 0; i < options_.senders; ++i) senders.emplace_back([this] { Send(); });
    std::thread pacer;
    if (options_.rate > 0) pacer = std::thread([this] { Pace(); });
    {
      std::unique_lock lock(mutex_);
      while (!all_ended_.wait_for(lock, kShowEvery, [this] { return Ended(); })) {
        const Progress progress{ended_, ended_ - result_.ok, Seconds(SteadyClock::now() - start_)};
        lock.unlock();
        show(progress);
        lock.lock();
      }
    }
    if (pacer.joinable()) pacer.join();
    for (std::thread& sender : senders) sender.join();
    result_.sent = ended_;
    result_.seconds = Seconds(last_end_ - start_);
    show({ended_, ended_ - result_.ok, result_.seconds});
    return std::move(result_);
  }

 private:
  // REQUIRES: mutex_ held.
  bool MayStartMore() const {
    if (options_.requests > 0 && started_ >= options_.requests) return false;
    return options_.duration.count() == 0 || SteadyClock::now() - start_ < options_.duration;
  }
  bool Ended() const { return stopped_ && ended_ == started_; }

  // The open loop: puts requests on the schedule, whether or not anything is free to send them.
  void Pace() {
    Schedule schedule(options_.arrivals, options_.rate, workload_.seed());
    for (;;) {
      const SteadyClock::time_point due = start_ + schedule.Next();
      std::this_thread::sleep_until(due);
      std::lock_guard lock(mutex_);
      if (!MayStartMore()) break;
      scheduled_.push_back(due);
      ++started_;
      work_.notify_one();
    }
    Stop();
  }

  void Stop() {
    std::lock_guard lock(mutex_);
    stopped_ = true;
    work_.notify_all();
    if (Ended()) all_ended_.notify_all();
  }

  // The next request to send, when there is one and a slot for it; nullopt when the run is over.
  std::optional<Job> NextJob() {
    std::unique_lock lock(mutex_);
    for (;;) {
      if (options_.rate > 0) {
        if (!scheduled_.empty() && !free_.empty()) {
          Job job{next_number_++, scheduled_.front(), std::move(free_.back())};
          scheduled_.pop_front();
          free_.pop_back();
          return job;
        }
        if (stopped_ && scheduled_.empty()) return std::nullopt;
      } else if (stopped_) {
        return std::nullopt;
      } else if (!MayStartMore()) {
        stopped_ = true;
        work_.notify_all();
        if (Ended()) all_ended_.notify_all();
        return std::nullopt;
      } else if (!free_.empty()) {
        Job job{next_number_++, SteadyClock::now(), std::move(free_.back())};
        free_.pop_back();
        ++started_;
        return job;
      }
      work_.wait(lock);
    }
  }

  void Send() {
    while (std::optional<Job> job = NextJob()) {
      const uint64_t index = options_.first_index + job->number;
      const RequestSpec spec = workload_.Request(index);
      client::AttendOptions attend = OptionsOf(spec);
      const auto o_bytes = static_cast<size_t>(spec.q_bytes());
      if (job->slot->o.size() < o_bytes) job->slot->o.resize(o_bytes);
      attend.o_destination = std::span(job->slot->o).first(o_bytes);
      // The callback outlives this loop's turn and must be copyable.
      auto shared = std::make_shared<Job>(*std::move(job));
      const SteadyClock::time_point sent = SteadyClock::now();
      client_.AttendAsync(InputsOf(spec), attend, [this, shared, spec, index, sent](auto result) {
        OnEnd(*shared, spec, index, sent, std::move(result));
      });
    }
  }

  bool IsSampled(uint64_t index) const {
    std::mt19937_64 generator(workload_.seed() ^ (index * 0xbf58476d1ce4e5b9u));
    return std::uniform_real_distribution<double>(0, 1)(generator) < options_.check_share;
  }

  void OnEnd(Job& job, const RequestSpec& spec, uint64_t index, SteadyClock::time_point sent,
             absl::StatusOr<client::AttendResult> result) {
    const SteadyClock::time_point now = SteadyClock::now();
    std::optional<Sample> sample;
    if (result.ok() && IsSampled(index)) {
      sample = TakeSample(spec, *result, index, options_.check_rows);
    }
    const AttentionTask task = TaskOf(spec);
    const double flops = Flops(task);

    std::lock_guard lock(mutex_);
    ++ended_;
    last_end_ = std::max(last_end_, now);
    if (result.ok()) {
      NoteAnswer(*result, spec, flops, (now - job.scheduled).count());
      if (sample) result_.samples.push_back(*std::move(sample));
    } else {
      const absl::Status& status = result.status();
      if (result_.errors[status.code()]++ == 0) {
        result_.first_error[status.code()] = Describe(status);
      }
      result_.retries += std::max(0, client::DetailsOf(status).attempts - 1);
    }
    if (options_.keep_trace) {
      result_.trace.push_back(MakeTrace(job, spec, index, sent, now, result));
    }
    free_.push_back(std::move(job.slot));
    work_.notify_one();
    if (Ended()) all_ended_.notify_all();
  }

  // REQUIRES: mutex_ held.
  void NoteAnswer(const client::AttendResult& answer, const RequestSpec& spec, double flops,
                  int64_t latency) {
    ++result_.ok;
    result_.retries += answer.attempts - 1;
    result_.latency.Record(latency);
    const client::ServingStats& stats = answer.stats;
    const double stages[] = {stats.decode_seconds, stats.queue_seconds,    stats.copy_in_seconds,
                             stats.kernel_seconds, stats.copy_out_seconds, stats.total_seconds};
    for (size_t i = 0; i < result_.stages.size(); ++i) {
      result_.stages[i].Record(static_cast<int64_t>(stages[i] * 1e9));
    }
    result_.outside.Record(latency - static_cast<int64_t>(stats.total_seconds * 1e9));
    ++result_.batch_requests[stats.batch_requests];
    result_.query_tokens += spec.rows;
    result_.flops += flops;
    result_.bytes_in += spec.bytes_in();
    result_.bytes_out += spec.bytes_out();
    result_.backend = stats.backend;
  }

  TraceRow MakeTrace(const Job& job, const RequestSpec& spec, uint64_t index,
                     SteadyClock::time_point sent, SteadyClock::time_point now,
                     const absl::StatusOr<client::AttendResult>& result) const {
    TraceRow row;
    row.index = index;
    row.spec = spec;
    row.scheduled_seconds = Seconds(job.scheduled - start_);
    row.sent_seconds = Seconds(sent - start_);
    row.done_seconds = Seconds(now - start_);
    if (result.ok()) {
      row.request_id = result->request_id;
      row.attempts = result->attempts;
      row.stats = result->stats;
    } else {
      const client::ErrorDetails details = client::DetailsOf(result.status());
      row.code = result.status().code();
      row.request_id = details.request_id;
      row.attempts = details.attempts;
    }
    return row;
  }

  client::Client& client_;
  const Workload& workload_;
  const LoadOptions options_;
  const SteadyClock::time_point start_;

  std::mutex mutex_;
  std::condition_variable work_;  // a slot, a scheduled request, or the end
  std::condition_variable all_ended_;
  // Guarded by mutex_.
  std::vector<std::unique_ptr<Slot>> free_;
  std::deque<SteadyClock::time_point> scheduled_;  // open loop: due and not yet sent
  uint64_t next_number_ = 0;
  int64_t started_ = 0;  // open loop: scheduled
  int64_t ended_ = 0;
  bool stopped_ = false;  // nothing more will be started
  SteadyClock::time_point last_end_ = start_;
  LoadResult result_;
};

}  // namespace

LoadResult RunLoad(client::Client& client, const Workload& workload, const LoadOptions& options,
                   const std::function<void(const Progress&)>& show) {
  return Run(client, workload, options).Go(show);
}

}  // namespace attend::cli
