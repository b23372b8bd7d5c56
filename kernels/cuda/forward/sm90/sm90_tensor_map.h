// Tensor maps: how the copy engine sees a tensor. Host code.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_TENSOR_MAP_H_
#define ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_TENSOR_MAP_H_

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/forward/device_task.h"

namespace attend::cuda::sm90 {

// A 16-bit tensor and the boxes it is copied in.
//
// Map {columns, pack, rows, heads / pack}, boxes of 64 columns, `pack` heads and `box_rows` rows;
// with pack 0, {columns, rows, heads} and boxes of one head. Reads beyond the extents give 0,
// writes beyond them are dropped. Strides count elements and are multiples of 8; data is aligned
// to 16.
struct TensorMapShape {
  Element element = Element::kBF16;
  int64_t columns = 0, rows = 0, heads = 0;
  int64_t row_stride = 0, head_stride = 0;
  int64_t pack = 0;
  int64_t box_rows = 0;
};

// Encodes tensor maps through the driver, found at run time: nothing links the driver's library.
//
// The driver takes 0.2 us for a map; a batch of 256 short sequences would wait 0.2 ms. Maps of one
// batch mostly differ in address and rows alone, so each Slot remembers its last map and patches
// those two. Where they stand in a map is not documented: the constructor finds the places in maps
// that the driver encoded and checks the patch against it on other shapes. If anything is not as
// expected, every map comes from the driver.
//
// Immutable after construction; thread-safe, with one Slot for each thread and kind of tensor.
class TensorMapEncoder {
 public:
  struct Slot {
    TensorMapShape shape;
    CUtensorMap map;
    bool used = false;
  };

  TensorMapEncoder();
  bool available() const { return encode_ != nullptr; }
  bool patches() const { return patches_; }

  // False when the driver refuses the shape.
  bool Encode(const TensorMapShape& shape, const void* data, Slot* slot, CUtensorMap* map) const;

 private:
  bool EncodeByDriver(const TensorMapShape& shape, const void* data, CUtensorMap* map) const;
  void Patch(int64_t rows, const void* data, bool packed, CUtensorMap* map) const;
  bool LearnPatch();

  using EncodeFunction = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                      const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                      const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                      CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
  EncodeFunction encode_ = nullptr;
  bool patches_ = false;
  size_t address_at_ = 0;                    // 8 bytes
  size_t rows_at_ = 0, rows_at_packed_ = 0;  // 4 bytes: extent - 1
};

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_TENSOR_MAP_H_
