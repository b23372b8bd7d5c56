// The first tasks of a worker, before any client's.

#ifndef ATTEND_SERVER_ENGINE_WARM_UP_H_
#define ATTEND_SERVER_ENGINE_WARM_UP_H_

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "server/engine/batch_runner.h"

namespace attend {

// Runs small tasks of every dtype, of the common head sizes, as prefill and as decode: loads the
// kernels and grows the executor's memory. Skips what the backend does not support. The first
// error, or OK. `backend` lends the memory for the time of the call.
absl::Status RunWarmUpTasks(Backend* backend, BatchRunner* runner);

}  // namespace attend

#endif  // ATTEND_SERVER_ENGINE_WARM_UP_H_
