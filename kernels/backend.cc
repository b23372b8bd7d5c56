// The registry of backends: one row each, best first.

#include "kernels/backend.h"

#include "absl/strings/str_cat.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"
#include "kernels/unfused/unfused_backend.h"
#if defined(ATTEND_WITH_CUDA)
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/unfused/unfused_cuda_backend.h"
#endif

namespace attend {
namespace {

constexpr bool kAuto = true;
constexpr bool kByNameOnly = false;

constexpr BackendEntry kRegistry[] = {
#if defined(ATTEND_WITH_CUDA)
    {"cuda", "fused kernels on an NVIDIA GPU", kAuto, MakeCudaBackend, CudaDeviceCount},
#endif
    {"cpu", "fused kernels on the CPU", kAuto, MakeCpuBackend, CpuDeviceCount},
    {"unfused-cpu", "three steps on the CPU, scores stored: a measuring stick", kByNameOnly,
     MakeUnfusedCpuBackend, UnfusedCpuDeviceCount},
#if defined(ATTEND_WITH_CUDA)
    {"cuda-portable", "as cuda, without kernels made for one architecture", kByNameOnly,
     MakePortableCudaBackend, CudaDeviceCount},
    {"unfused-cuda", "three steps on an NVIDIA GPU, scores stored: a measuring stick", kByNameOnly,
     MakeUnfusedCudaBackend, UnfusedCudaDeviceCount},
#endif
    {"reference", "double precision, plain loops: the oracle", kByNameOnly, MakeReferenceBackend,
     ReferenceDeviceCount},
};

absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

absl::Span<const BackendEntry> BackendRegistry() { return kRegistry; }

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(std::string_view name,
                                                     const BackendOptions& options) {
  std::string choices = "auto";
  for (const BackendEntry& entry : kRegistry) {
    absl::StrAppend(&choices, ", ", ToAbsl(entry.name));
    if (name == "auto") {
      if (entry.chosen_by_auto && entry.device_count() > 0) return entry.make(options);
    } else if (name == entry.name) {
      if (entry.device_count() > 0) return entry.make(options);
      return absl::UnavailableError(
          absl::StrCat("backend ", ToAbsl(name), ": no device answers on this host"));
    }
  }
  if (name == "auto") return absl::UnavailableError("no backend has a device on this host");
  return absl::NotFoundError(
      absl::StrCat("no backend is called \"", ToAbsl(name), "\"; choices: ", choices));
}

}  // namespace attend
