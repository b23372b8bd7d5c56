// Reasons that the engine attaches to its refusals (kernels/errors.h, ReasonOf): a closed set, for
// clients to branch on and for metric labels.

#ifndef ATTEND_SERVER_ENGINE_REASONS_H_
#define ATTEND_SERVER_ENGINE_REASONS_H_

#include <string_view>

namespace attend {

inline constexpr std::string_view kReasonQueueFull = "QUEUE_FULL";        // RESOURCE_EXHAUSTED
inline constexpr std::string_view kReasonMemory = "MEMORY";               // RESOURCE_EXHAUSTED
inline constexpr std::string_view kReasonClientShare = "CLIENT_SHARE";    // RESOURCE_EXHAUSTED
inline constexpr std::string_view kReasonDeviceMemory = "DEVICE_MEMORY";  // RESOURCE_EXHAUSTED
inline constexpr std::string_view kReasonTooLarge = "TOO_LARGE";          // INVALID_ARGUMENT
inline constexpr std::string_view kReasonDraining = "DRAINING";           // UNAVAILABLE
inline constexpr std::string_view kReasonUnhealthy = "DEVICE_UNHEALTHY";  // UNAVAILABLE
inline constexpr std::string_view kReasonDeadline = "DEADLINE";           // DEADLINE_EXCEEDED
inline constexpr std::string_view kReasonKernelFailed = "KERNEL_FAILED";  // INTERNAL

}  // namespace attend

#endif  // ATTEND_SERVER_ENGINE_REASONS_H_
