// Which families serve a device, preferred first.

#include "kernels/cuda/forward/family.h"

namespace attend::cuda {

std::vector<std::unique_ptr<ForwardFamily>> MakeForwardFamilies(int /*major*/, int /*minor*/,
                                                                int /*sm_count*/) {
  return {};
}

}  // namespace attend::cuda
