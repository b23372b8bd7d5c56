#include "kernels/cuda/forward/sm90/sm90_tensor_map.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>

namespace attend::cuda::sm90 {
namespace {

constexpr int64_t kPanelColumns = 64;  // 128 bytes: the swizzle's span
constexpr int64_t kElementBytes = 2;
constexpr unsigned int kEncodeSince = 12000;  // the driver interface that has the function

cuuint64_t Extent(int64_t value) { return static_cast<cuuint64_t>(std::max<int64_t>(value, 1)); }
cuuint64_t Bytes(int64_t elements) { return static_cast<cuuint64_t>(elements * kElementBytes); }

bool SameButRows(const TensorMapShape& a, const TensorMapShape& b) {
  return a.element == b.element && a.columns == b.columns && a.heads == b.heads &&
         a.row_stride == b.row_stride && a.head_stride == b.head_stride && a.pack == b.pack &&
         a.box_rows == b.box_rows;
}

// The one place in a map where `bytes` of `value` stand; nothing when there is none or several.
template <class T>
bool FindOnly(const CUtensorMap& map, T value, size_t* at) {
  const char* bytes = reinterpret_cast<const char*>(&map);
  int found = 0;
  for (size_t i = 0; i + sizeof(T) <= sizeof(map); i += sizeof(T)) {
    if (std::memcmp(bytes + i, &value, sizeof(T)) != 0) continue;
    *at = i;
    ++found;
  }
  return found == 1;
}

}  // namespace

TensorMapEncoder::TensorMapEncoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion(
      "cuTensorMapEncodeTiled", &function, kEncodeSince, cudaEnableDefault, &found);
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess) {
    cudaGetLastError();
    return;
  }
  encode_ = reinterpret_cast<EncodeFunction>(function);
  patches_ = LearnPatch();
}

bool TensorMapEncoder::EncodeByDriver(const TensorMapShape& shape, const void* data,
                                      CUtensorMap* map) const {
  const bool packed = shape.pack > 0;
  const cuuint64_t rows = Extent(shape.rows);
  const cuuint64_t plain_extents[3] = {Extent(shape.columns), rows, Extent(shape.heads)};
  const cuuint64_t plain_strides[2] = {Bytes(shape.row_stride), Bytes(shape.head_stride)};
  const cuuint32_t box_rows = static_cast<cuuint32_t>(shape.box_rows);
  const cuuint32_t plain_box[3] = {kPanelColumns, box_rows, 1};
  const int64_t pack = std::max<int64_t>(shape.pack, 1);
  const cuuint64_t packed_extents[4] = {Extent(shape.columns), Extent(pack), rows,
                                        Extent(shape.heads / pack)};
  const cuuint64_t packed_strides[3] = {Bytes(shape.head_stride), Bytes(shape.row_stride),
                                        Bytes(shape.head_stride * pack)};
  const cuuint32_t packed_box[4] = {kPanelColumns, static_cast<cuuint32_t>(pack), box_rows, 1};
  const cuuint32_t element_strides[4] = {1, 1, 1, 1};
  const CUtensorMapDataType type = shape.element == Element::kBF16
                                       ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                       : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  // A box row is 128 bytes. Promotion to 256 has L2 fetch what the next panel's box asks for
  // anyway, twice over the link between its halves: 5 % less bandwidth for decode, 2.5 % less where
  // L2 is the limit (causal, S = 512).
  constexpr CUtensorMapL2promotion kPromotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
  return encode_(map, type, packed ? 4 : 3, const_cast<void*>(data),
                 packed ? packed_extents : plain_extents, packed ? packed_strides : plain_strides,
                 packed ? packed_box : plain_box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
                 CU_TENSOR_MAP_SWIZZLE_128B, kPromotion,
                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

void TensorMapEncoder::Patch(int64_t rows, const void* data, bool packed, CUtensorMap* map) const {
  char* bytes = reinterpret_cast<char*>(map);
  const uint64_t address = reinterpret_cast<uint64_t>(data);
  const uint32_t last_row = static_cast<uint32_t>(Extent(rows) - 1);
  std::memcpy(bytes + address_at_, &address, sizeof(address));
  std::memcpy(bytes + (packed ? rows_at_packed_ : rows_at_), &last_row, sizeof(last_row));
}

bool TensorMapEncoder::LearnPatch() {
  // Values that no other field has; the address is never read.
  constexpr uint64_t kAddress = 0x00007f5432a1b600ull;
  constexpr int64_t kRows = 0x01234568;
  for (const int64_t pack : {int64_t{0}, int64_t{4}}) {
    TensorMapShape shape = {Element::kBF16, 128, kRows, 16, 2048, 128, pack, 16};
    CUtensorMap first, expected;
    if (!EncodeByDriver(shape, reinterpret_cast<const void*>(kAddress), &first)) return false;
    size_t address_at = 0;
    if (!FindOnly(first, kAddress, &address_at) ||
        !FindOnly(first, static_cast<uint32_t>(kRows - 1),
                  pack > 0 ? &rows_at_packed_ : &rows_at_)) {
      return false;
    }
    if (pack > 0 && address_at != address_at_) return false;
    address_at_ = address_at;
    // The patch must give what the driver gives, from the smallest to the largest and back.
    for (const int64_t rows : {int64_t{1}, int64_t{2}, int64_t{63}, int64_t{64}, int64_t{4097},
                               int64_t{1} << 20, (int64_t{1} << 29) - 1, int64_t{77}}) {
      const uint64_t address = kAddress + static_cast<uint64_t>(rows) * 4096 * 16 + 16;
      shape.rows = rows;
      CUtensorMap patched = first;
      Patch(rows, reinterpret_cast<const void*>(address), pack > 0, &patched);
      if (!EncodeByDriver(shape, reinterpret_cast<const void*>(address), &expected) ||
          std::memcmp(&patched, &expected, sizeof(patched)) != 0) {
        return false;
      }
      first = patched;
    }
  }
  return true;
}

bool TensorMapEncoder::Encode(const TensorMapShape& shape, const void* data, Slot* slot,
                              CUtensorMap* map) const {
  if (patches_ && slot->used && SameButRows(slot->shape, shape)) {
    Patch(shape.rows, data, shape.pack > 0, &slot->map);
  } else {
    slot->used = EncodeByDriver(shape, data, &slot->map);
    slot->shape = shape;
    if (!slot->used) return false;
  }
  *map = slot->map;
  return true;
}

}  // namespace attend::cuda::sm90
