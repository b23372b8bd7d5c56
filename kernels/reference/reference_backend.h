// The oracle as a backend: never chosen by itself; for tests and for judging other backends.

#ifndef ATTEND_KERNELS_REFERENCE_REFERENCE_BACKEND_H_
#define ATTEND_KERNELS_REFERENCE_REFERENCE_BACKEND_H_

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace attend {

absl::StatusOr<std::unique_ptr<Backend>> MakeReferenceBackend(const BackendOptions& options);
int ReferenceDeviceCount();

}  // namespace attend

#endif  // ATTEND_KERNELS_REFERENCE_REFERENCE_BACKEND_H_
