// Which of the portable kernels a task takes: by its element type, head sizes, rows and options.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_VARIANT_H_
#define ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_VARIANT_H_

#include <cstdint>
#include <string_view>

#include "kernels/attention.h"
#include "kernels/cuda/forward/sm80/sm80_kernels.h"
#include "kernels/plan.h"

namespace attend::cuda::sm80 {

enum class Kind : uint32_t { kTile, kDecode, kFp32 };

struct Variant {
  Kind kind = Kind::kTile;
  uint32_t element = 0;  // a DType
  uint32_t size = 0;     // index into kTileColumns
  bool options = false;

  // Small and different for different variants.
  uint32_t Encode() const {
    return static_cast<uint32_t>(kind) << 8 | element << 4 | size << 1 | (options ? 1u : 0u);
  }
};
inline constexpr uint32_t kEncodedVariants = 1024;

// Query heads to a kv head.
int64_t Group(const AttentionTask& task);

Variant VariantOf(const AttentionTask& task);
PlanRule RuleOf(const Variant& variant);
KernelFunction FunctionOf(const Variant& variant);
std::string_view NameOf(Kind kind);

}  // namespace attend::cuda::sm80

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM80_SM80_VARIANT_H_
