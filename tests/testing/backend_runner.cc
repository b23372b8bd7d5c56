#include "tests/testing/backend_runner.h"

#include <functional>
#include <map>
#include <utility>

namespace attend::testing {
absl::StatusOr<BackendRunner*> BackendRunner::Of(std::string_view name) {
  static auto& runners = *new std::map<std::string, std::unique_ptr<BackendRunner>, std::less<>>;
  if (const auto found = runners.find(name); found != runners.end()) return found->second.get();
  absl::StatusOr<std::unique_ptr<Backend>> backend = MakeBackend(name, {});
  if (!backend.ok()) return backend.status();
  absl::StatusOr<std::unique_ptr<Executor>> executor = (*backend)->MakeExecutor();
  if (!executor.ok()) return executor.status();
  auto& runner = runners[std::string(name)];
  runner.reset(new BackendRunner(*std::move(backend), *std::move(executor)));
  return runner.get();
}

BackendRunner::BackendRunner(std::unique_ptr<Backend> backend, std::unique_ptr<Executor> executor)
    : backend_(std::move(backend)), executor_(std::move(executor)) {}

absl::Status BackendRunner::Supports(absl::Span<const AttentionTask> tasks) const {
  for (const AttentionTask& task : tasks) {
    if (absl::Status status = backend_->Supports(task); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status BackendRunner::Run(absl::Span<const AttentionTask> tasks) {
  return RunOn(*executor_, tasks);
}

absl::Status BackendRunner::RunElsewhere(absl::Span<const AttentionTask> tasks) {
  if (other_executor_ == nullptr) {
    absl::StatusOr<std::unique_ptr<Executor>> executor = backend_->MakeExecutor();
    if (!executor.ok()) return executor.status();
    other_executor_ = *std::move(executor);
  }
  return RunOn(*other_executor_, tasks);
}

absl::Status BackendRunner::RunOn(Executor& executor, absl::Span<const AttentionTask> tasks) {
  std::map<uint64_t, std::vector<AttentionTask>> batches;
  for (const AttentionTask& task : tasks) {
    if (absl::Status status = Validate(task); !status.ok()) return status;
    if (absl::Status status = backend_->Supports(task); !status.ok()) return status;
    batches[backend_->Classify(task).key].push_back(task);
  }
  for (const auto& [key, batch] : batches) {
    if (absl::Status status = executor.Run({batch}, &report_); !status.ok()) return status;
  }
  return absl::OkStatus();
}

std::vector<std::string> JudgedBackends() {
  std::vector<std::string> names;
  for (const BackendEntry& entry : BackendRegistry()) {
    if (entry.name != "reference" && entry.device_count() > 0) names.emplace_back(entry.name);
  }
  return names;
}

std::string TestName(std::string_view name) {
  std::string result(name);
  for (char& c : result) {
    if (c == '-' || c == '.') c = '_';
  }
  return result;
}

}  // namespace attend::testing
