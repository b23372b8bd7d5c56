#include "server/engine/engine_group.h"

#include <algorithm>
#include <thread>
#include <tuple>
#include <utility>

#include "absl/functional/function_ref.h"
#include "server/engine/engine_impl.h"

namespace attend {
namespace {

using Engines = absl::Span<const std::unique_ptr<Engine>>;

// Calls `call` for every engine at once; the first error in their order.
absl::Status ForAll(Engines engines, absl::FunctionRef<absl::Status(Engine&)> call) {
  std::vector<absl::Status> results(engines.size());
  std::vector<std::thread> threads;
  threads.reserve(engines.size());
  for (size_t i = 0; i < engines.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = call(*engines[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& result : results) {
    if (!result.ok()) return result;
  }
  return absl::OkStatus();
}

}  // namespace

EngineGroup::EngineGroup(std::vector<std::unique_ptr<Engine>> engines)
    : engines_(std::move(engines)) {}

absl::StatusOr<Admission> EngineGroup::Admit(const AdmissionRequest& request) {
  struct Choice {
    // What was admitted counts before it is submitted: a burst must not all go one way.
    double flops;
    int64_t bytes;
    int64_t requests;
    size_t turn;  // equals go round
    Engine* engine;
  };
  std::vector<Choice> choices;
  const size_t first = next_.fetch_add(1, std::memory_order_relaxed);
  for (size_t i = 0; i < engines_.size(); ++i) {
    Engine* const engine = engines_[(first + i) % engines_.size()].get();
    const EngineStats stats = engine->stats();
    if (!stats.healthy && engines_.size() > 1) continue;
    choices.push_back({std::max(stats.in_flight_flops, stats.outstanding_flops),
                       stats.in_flight_bytes, stats.in_flight_requests, i, engine});
  }
  if (choices.empty()) return engines_.front()->Admit(request);  // says why
  std::sort(choices.begin(), choices.end(), [](const Choice& a, const Choice& b) {
    return std::tie(a.flops, a.bytes, a.requests, a.turn) <
           std::tie(b.flops, b.bytes, b.requests, b.turn);
  });
  absl::StatusOr<Admission> answer = choices.front().engine->Admit(request);
  for (size_t i = 1; i < choices.size() && !answer.ok(); ++i) {
    if (absl::IsInvalidArgument(answer.status())) break;
    absl::StatusOr<Admission> next = choices[i].engine->Admit(request);
    if (next.ok()) return next;
  }
  return answer;
}

RequestHandle EngineGroup::Submit(const Admission& admission, Request request) {
  return admission.state_->engine->Submit(std::move(request));
}

absl::Status EngineGroup::Drain(Clock::time_point deadline) {
  return ForAll(engines_, [deadline](Engine& engine) { return engine.Drain(deadline); });
}

absl::Status EngineGroup::WarmUp() {
  return ForAll(engines_, [](Engine& engine) { return engine.WarmUp(); });
}

EngineStats EngineGroup::stats() const {
  EngineStats sum;
  sum.draining = true;
  for (const std::unique_ptr<Engine>& engine : engines_) {
    const EngineStats stats = engine->stats();
    sum.queued_requests += stats.queued_requests;
    sum.queued_tokens += stats.queued_tokens;
    sum.queued_bytes += stats.queued_bytes;
    sum.in_flight_requests += stats.in_flight_requests;
    sum.in_flight_bytes += stats.in_flight_bytes;
    sum.in_flight_flops += stats.in_flight_flops;
    sum.outstanding_flops += stats.outstanding_flops;
    sum.staging_used_bytes += stats.staging_used_bytes;
    sum.staging_reserved_bytes += stats.staging_reserved_bytes;
    sum.staging_peak_bytes += stats.staging_peak_bytes;
    sum.staging_limit_bytes += stats.staging_limit_bytes;
    sum.draining = sum.draining && stats.draining;
    sum.healthy = sum.healthy && stats.healthy;
  }
  return sum;
}

absl::Status EngineGroup::Healthy() const {
  absl::Status first;
  bool any = false;
  for (const std::unique_ptr<Engine>& engine : engines_) {
    const absl::Status status = engine->Healthy();
    any = any || status.ok();
    first.Update(status);
  }
  return any ? absl::OkStatus() : first;
}

}  // namespace attend
