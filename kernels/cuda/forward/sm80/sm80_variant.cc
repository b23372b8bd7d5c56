#include "kernels/cuda/forward/sm80/sm80_variant.h"

#include <algorithm>

#include "kernels/cuda/forward/kernel_names.h"
#include "kernels/cuda/forward/sm80/sm80_config.h"
#include "kernels/cuda/forward/sm80/sm80_rules.h"

namespace attend::cuda::sm80 {
namespace {

// Scales beyond these could overflow or vanish when folded into the exponent.
constexpr float kSmallestFoldedScale = 1e-30f;
constexpr float kLargestFoldedScale = 1e30f;

static_assert(TileConfig<64>::kRows == TileConfig<128>::kRows);
static_assert(Fp32Config<64>::kRows == Fp32Config<128>::kRows &&
              Fp32Config<64>::kRows == Fp32Config<256>::kRows);

template <Element kElement>
KernelFunction Function16(const Variant& v) {
  const bool tile = v.kind == Kind::kTile;
  switch (kTileColumns[v.size]) {
    case 64:
      return tile ? TileKernelFunction<kElement, 64>(v.options)
                  : DecodeKernelFunction<kElement, 64>(v.options);
    case 128:
      return tile ? TileKernelFunction<kElement, 128>(v.options)
                  : DecodeKernelFunction<kElement, 128>(v.options);
    default:
      return tile ? TileKernelFunction<kElement, 256>(v.options)
                  : DecodeKernelFunction<kElement, 256>(v.options);
  }
}

}  // namespace

int64_t Group(const AttentionTask& task) {
  return task.heads_k() == 0 ? 1 : task.heads_q() / task.heads_k();
}

Variant VariantOf(const AttentionTask& task) {
  Variant variant;
  variant.element = static_cast<uint32_t>(task.dtype());
  const int64_t columns = std::max(task.head_dim(), task.head_dim_v());
  while (kTileColumns[variant.size] < columns) ++variant.size;
  if (task.dtype() == DType::kF32) {
    variant.kind = Kind::kFp32;
  } else if (task.seqlen_q * Group(task) <= kDecodeRows) {
    variant.kind = Kind::kDecode;
  }
  const float scale = task.softmax_scale;
  variant.options = task.softcap > 0 || !task.bias.absent() || !task.alibi_slopes.absent() ||
                    !(scale >= kSmallestFoldedScale && scale <= kLargestFoldedScale);
  return variant;
}

PlanRule RuleOf(const Variant& variant) {
  switch (variant.kind) {
    case Kind::kDecode:
      return DecodeRule();
    case Kind::kFp32:
      return TileRule(Fp32Config<64>::kRows);
    case Kind::kTile:
      break;
  }
  return TileRule(kTileColumns[variant.size] == 256 ? TileConfig<256>::kRows
                                                    : TileConfig<128>::kRows);
}

KernelFunction FunctionOf(const Variant& v) {
  if (v.kind == Kind::kFp32) {
    switch (kTileColumns[v.size]) {
      case 64:
        return Fp32KernelFunction<64>(v.options);
      case 128:
        return Fp32KernelFunction<128>(v.options);
      default:
        return Fp32KernelFunction<256>(v.options);
    }
  }
  return static_cast<DType>(v.element) == DType::kF16 ? Function16<Element::kF16>(v)
                                                      : Function16<Element::kBF16>(v);
}

std::string_view NameOf(Kind kind) {
  switch (kind) {
    case Kind::kDecode:
      return kDecodeSm80Name;
    case Kind::kFp32:
      return kForwardFp32Name;
    case Kind::kTile:
      break;
  }
  return kForwardSm80Name;
}

}  // namespace attend::cuda::sm80
