#include "kernels/cuda/unfused/cublas.h"

#include <dlfcn.h>

namespace attend::cuda {
namespace {

// The version that the headers belong to first; the functions used have not changed since the one
// before it.
constexpr const char* kLibraries[] = {"libcublas.so.13", "libcublas.so.12"};

template <typename Function>
bool Find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
  return *function != nullptr;
}

}  // namespace

const Cublas* LoadCublas() {
  static const Cublas* const loaded = []() -> const Cublas* {
    for (const char* name : kLibraries) {
      // Never closed: its functions are used until the process ends.
      void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (library == nullptr) continue;
      static Cublas cublas;
      if (Find(library, "cublasCreate_v2", &cublas.create) &&
          Find(library, "cublasDestroy_v2", &cublas.destroy) &&
          Find(library, "cublasSetStream_v2", &cublas.set_stream) &&
          Find(library, "cublasGemmStridedBatchedEx", &cublas.gemm)) {
        return &cublas;
      }
    }
    return nullptr;
  }();
  return loaded;
}

}  // namespace attend::cuda
