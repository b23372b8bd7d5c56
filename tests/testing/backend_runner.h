// Runs tasks on a backend of the registry, as the engine would: grouped by KernelClass.

#ifndef ATTEND_TESTS_TESTING_BACKEND_RUNNER_H_
#define ATTEND_TESTS_TESTING_BACKEND_RUNNER_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/attention.h"
#include "kernels/backend.h"

namespace attend::testing {

// One backend with one executor. Single-threaded.
class BackendRunner {
 public:
  // The runner of the backend called `name`, made at the first call and kept to the end of the
  // process, as making a CUDA backend takes long. Or why the backend cannot be made.
  static absl::StatusOr<BackendRunner*> Of(std::string_view name);

  Backend& backend() { return *backend_; }

  // OK, or why the backend refuses one of the tasks (UNIMPLEMENTED).
  absl::Status Supports(absl::Span<const AttentionTask> tasks) const;

  // Validates the tasks and runs them, one batch for each class; the order of tasks of one class
  // is kept.
  absl::Status Run(absl::Span<const AttentionTask> tasks);

  // The same on an executor of its own.
  absl::Status RunElsewhere(absl::Span<const AttentionTask> tasks);

  // What the last batch reported.
  const BatchReport& report() const { return report_; }

 private:
  BackendRunner(std::unique_ptr<Backend> backend, std::unique_ptr<Executor> executor);
  absl::Status RunOn(Executor& executor, absl::Span<const AttentionTask> tasks);

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Executor> other_executor_;
  BatchReport report_;
};

// The registry's backends that have a device here, but for `reference`, which is the judge.
std::vector<std::string> JudgedBackends();

// `name` with letters, digits and underscores only, as GoogleTest wants names of parameters.
std::string TestName(std::string_view name);

}  // namespace attend::testing

#endif  // ATTEND_TESTS_TESTING_BACKEND_RUNNER_H_
