// What the processor calls itself.

#ifndef ATTEND_KERNELS_CPU_CPU_NAME_H_
#define ATTEND_KERNELS_CPU_CPU_NAME_H_

#include <string>

namespace attend::cpu {

// The brand string ("AMD EPYC ..."), or "CPU" where there is none.
std::string CpuName();

}  // namespace attend::cpu

#endif  // ATTEND_KERNELS_CPU_CPU_NAME_H_
