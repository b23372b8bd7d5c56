#include "kernels/cpu/cpu_name.h"

#include <cstring>

#include "absl/strings/ascii.h"
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace attend::cpu {

std::string CpuName() {
#if defined(__x86_64__)
  // Leaves 0x80000002 to 0x80000004: 16 characters each.
  unsigned words[12] = {};
  for (unsigned leaf = 0; leaf < 3; ++leaf) {
    unsigned* w = words + 4 * leaf;
    if (__get_cpuid(0x80000002u + leaf, &w[0], &w[1], &w[2], &w[3]) == 0) return "CPU";
  }
  char text[sizeof words + 1] = {};
  std::memcpy(text, words, sizeof words);
  std::string name = text;
  absl::RemoveExtraAsciiWhitespace(&name);
  return name.empty() ? "CPU" : name;
#else
  return "CPU";
#endif
}

}  // namespace attend::cpu
