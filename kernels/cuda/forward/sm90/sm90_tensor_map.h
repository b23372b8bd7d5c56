// Tensor maps: how the copy engine sees a tensor. Host code.

#ifndef ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_TENSOR_MAP_H_
#define ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_TENSOR_MAP_H_

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/forward/device_task.h"

namespace attend::cuda::sm90 {

// Encodes tensor maps through the driver, found at run time: nothing links the driver's library.
// Immutable; thread-safe.
class TensorMapEncoder {
 public:
  TensorMapEncoder();
  bool available() const { return encode_ != nullptr; }

  // {columns, rows, heads}, boxes of 64 columns by `box_rows` rows of one head. Reads beyond the
  // extents give 0, writes beyond them are dropped. Strides count elements. False: not encodable.
  bool Encode3(CUtensorMap* map, Element element, const void* data, int64_t columns, int64_t rows,
               int64_t heads, int64_t row_stride, int64_t head_stride, int64_t box_rows) const;

  // {columns, pack, rows, heads / pack}: boxes of 64 columns, `pack` heads, `box_rows` rows.
  bool Encode4(CUtensorMap* map, Element element, const void* data, int64_t columns, int64_t pack,
               int64_t rows, int64_t heads, int64_t row_stride, int64_t head_stride,
               int64_t box_rows) const;

 private:
  bool Encode(CUtensorMap* map, Element element, const void* data, uint32_t rank,
              const cuuint64_t* extents, const cuuint64_t* strides, const cuuint32_t* box) const;

  using EncodeFunction = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                      const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                      const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                                      CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
  EncodeFunction encode_ = nullptr;
};

}  // namespace attend::cuda::sm90

#endif  // ATTEND_KERNELS_CUDA_FORWARD_SM90_SM90_TENSOR_MAP_H_
