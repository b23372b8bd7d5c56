#include "attend/internal/retry.h"

#include <algorithm>
#include <cmath>

namespace attend::client {
namespace {

constexpr double kHintSpread = 0.25;

bool MayRetry(const AttemptError& error) {
  if (error.retry_forbidden) return false;
  if (error.code == absl::StatusCode::kUnavailable) return true;
  // Without a hint nothing says that the same request could ever pass.
  return error.code == absl::StatusCode::kResourceExhausted &&
         error.details.retry_after.has_value();
}

}  // namespace

std::optional<std::chrono::nanoseconds> RetryDelay(const RetryOptions& options,
                                                   const AttemptError& error, int attempts,
                                                   std::chrono::nanoseconds remaining,
                                                   double chance) {
  if (attempts >= options.max_attempts || !MayRetry(error)) return std::nullopt;
  double seconds = 0;
  if (error.details.retry_after.has_value()) {
    seconds = std::chrono::duration<double>(*error.details.retry_after).count() *
              (1 + kHintSpread * chance);
  } else {
    const double first = std::chrono::duration<double>(options.initial_backoff).count();
    const double most = std::chrono::duration<double>(options.max_backoff).count();
    seconds =
        std::min(most, first * std::pow(options.multiplier, attempts - 1)) * (0.5 + 0.5 * chance);
  }
  if (seconds >= std::chrono::duration<double>(remaining).count()) return std::nullopt;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
      std::chrono::duration<double>(seconds));
}

}  // namespace attend::client
