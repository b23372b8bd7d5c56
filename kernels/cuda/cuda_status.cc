#include "kernels/cuda/cuda_status.h"

#include "absl/strings/str_cat.h"

namespace attend::cuda {

absl::Status ToStatus(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message =
      absl::StrCat(absl::string_view(what.data(), what.size()), ": ", cudaGetErrorName(error), ": ",
                   cudaGetErrorString(error));
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::ResourceExhaustedError(message);
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInitializationError:
    case cudaErrorInvalidDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorDeviceUninitialized:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorStubLibrary:
    case cudaErrorDeviceNotLicensed:
      return absl::UnavailableError(message);
    default:
      return absl::InternalError(message);
  }
}

bool IsSticky(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorMpsRpcFailure:
    case cudaErrorMpsServerNotReady:
    case cudaErrorContextIsDestroyed:
    case cudaErrorCudartUnloading:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorContained:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown:
      return true;
    default:
      return false;
  }
}

absl::Status DeviceHealth::Check(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  absl::Status status = ToStatus(error, what);
  // The last-error slot of this thread: a sticky error stays whatever is read here.
  cudaGetLastError();
  if (IsSticky(error)) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (first_sticky_.ok()) first_sticky_ = status;
  }
  return status;
}

absl::Status DeviceHealth::Get() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (first_sticky_.ok()) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("device is lost to this process after ", first_sticky_.message()));
}

}  // namespace attend::cuda
