// Which families serve a device, preferred first.

#include <utility>

#include "kernels/cuda/forward/family.h"
#include "kernels/cuda/forward/sm80/sm80_family.h"
#include "kernels/cuda/forward/sm90/sm90_family.h"

namespace attend::cuda {

std::vector<std::unique_ptr<ForwardFamily>> MakeForwardFamilies(int major, int minor,
                                                                int sm_count) {
  std::vector<std::unique_ptr<ForwardFamily>> families;
  // Its machine code runs on 9.0 alone: it is built for 9.0a.
  if (major == 9 && minor == 0) {
    if (std::unique_ptr<ForwardFamily> hopper = MakeSm90Family(sm_count); hopper != nullptr) {
      families.push_back(std::move(hopper));
    }
  }
  families.push_back(MakeSm80Family());
  return families;
}

}  // namespace attend::cuda
