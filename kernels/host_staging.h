// Staging for backends whose device is the host: plain aligned memory.

#ifndef ATTEND_KERNELS_HOST_STAGING_H_
#define ATTEND_KERNELS_HOST_STAGING_H_

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/attention.h"
#include "kernels/backend.h"

namespace attend {

// `bytes` of pageable memory, aligned to kHostStagingAlignment; its content is arbitrary.
// RESOURCE_EXHAUSTED when the host has no more.
absl::StatusOr<std::unique_ptr<Staging>> MakeHostStaging(size_t bytes);

inline constexpr size_t kHostStagingAlignment = 4096;  // a page: no line is shared with others

// UNIMPLEMENTED naming the tensor when one of `task` is in device memory; or OK.
absl::Status CheckOnHost(const AttentionTask& task, std::string_view backend_name);

}  // namespace attend

#endif  // ATTEND_KERNELS_HOST_STAGING_H_
