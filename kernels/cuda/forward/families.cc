// Which families serve a device, preferred first.

#include "kernels/cuda/forward/family.h"
#include "kernels/cuda/forward/sm80/sm80_family.h"

namespace attend::cuda {

std::vector<std::unique_ptr<ForwardFamily>> MakeForwardFamilies(int /*major*/, int /*minor*/,
                                                                int /*sm_count*/) {
  std::vector<std::unique_ptr<ForwardFamily>> families;
  families.push_back(MakeSm80Family());
  return families;
}

}  // namespace attend::cuda
