// The few functions of cuBLAS that the unfused backend uses, found at run time. Declared here, so
// that neither building nor starting needs the library.

#ifndef ATTEND_KERNELS_CUDA_UNFUSED_CUBLAS_H_
#define ATTEND_KERNELS_CUDA_UNFUSED_CUBLAS_H_

#include <cuda_runtime_api.h>
#include <library_types.h>

namespace attend::cuda {

// The library's C interface, versions 12 and 13; values as in its header.
struct Cublas {
  using Handle = struct cublasContext*;
  enum Status : int { kSuccess = 0, kAllocFailed = 3 };
  enum Operation : int { kAsIs = 0, kTransposed = 1 };
  enum Compute : int { kFp32 = 68 };
  enum Algorithm : int { kDefault = -1 };

  Status (*create)(Handle* handle) = nullptr;
  Status (*destroy)(Handle handle) = nullptr;
  Status (*set_stream)(Handle handle, cudaStream_t stream) = nullptr;
  // c = alpha a b + beta c for each of `batch` matrices, all stored by columns.
  Status (*gemm)(Handle handle, Operation a_operation, Operation b_operation, int m, int n, int k,
                 const void* alpha, const void* a, cudaDataType a_type, int a_pitch,
                 long long a_stride, const void* b, cudaDataType b_type, int b_pitch,
                 long long b_stride, const void* beta, void* c, cudaDataType c_type, int c_pitch,
                 long long c_stride, int batch, Compute compute, Algorithm algorithm) = nullptr;
};

// Loads the library once; null when the host has none. Thread-safe.
const Cublas* LoadCublas();

}  // namespace attend::cuda

#endif  // ATTEND_KERNELS_CUDA_UNFUSED_CUBLAS_H_
