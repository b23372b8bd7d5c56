// Statuses that say more than a sentence: the field at fault, a machine-readable reason, when to
// try again. The extras ride as payloads of absl::Status, so every layer passes them on untouched
// and server/rpc turns them into google.rpc details.

#ifndef ATTEND_KERNELS_ERRORS_H_
#define ATTEND_KERNELS_ERRORS_H_

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace attend {

// INVALID_ARGUMENT with "`field`: `what`". `field` is a path in the request ("q.shape").
absl::Status InvalidField(std::string_view field, std::string_view what);

// UNIMPLEMENTED with "`option`: `what`"; FieldOf() gives `option`.
absl::Status UnsupportedOption(std::string_view option, std::string_view what);

// Adds to `status` (no-ops on an OK status). Reasons are UPPER_SNAKE words from a closed set per
// layer.
absl::Status WithField(absl::Status status, std::string_view field);
absl::Status WithReason(absl::Status status, std::string_view reason);
absl::Status WithRetryAfter(absl::Status status, std::chrono::milliseconds delay);

std::optional<std::string> FieldOf(const absl::Status& status);
std::optional<std::string> ReasonOf(const absl::Status& status);
std::optional<std::chrono::milliseconds> RetryAfterOf(const absl::Status& status);

}  // namespace attend

#endif  // ATTEND_KERNELS_ERRORS_H_
