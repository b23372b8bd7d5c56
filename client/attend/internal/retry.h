// When to try again: pure decisions, time and chance are arguments.

#ifndef ATTEND_CLIENT_INTERNAL_RETRY_H_
#define ATTEND_CLIENT_INTERNAL_RETRY_H_

#include <chrono>
#include <optional>

#include "attend/internal/status_details.h"
#include "attend/options.h"

namespace attend::client {

// How long to wait before the attempt after number `attempts` (>= 1, those made so far), or
// nullopt when the call should end with `error`: not a code to retry, forbidden by the server, no
// attempts left, or the wait would take all of `remaining`, the time to the call's deadline.
// `chance` is uniform in [0, 1): it spreads clients that were refused together. A hint is a floor:
// the wait is the hint to 1.25 times the hint; a backoff is half of itself to itself.
std::optional<std::chrono::nanoseconds> RetryDelay(const RetryOptions& options,
                                                   const AttemptError& error, int attempts,
                                                   std::chrono::nanoseconds remaining,
                                                   double chance);

}  // namespace attend::client

#endif  // ATTEND_CLIENT_INTERNAL_RETRY_H_
