// Memory that only grows, aligned for vectors and cache lines.

#ifndef ATTEND_KERNELS_CPU_ALIGNED_BUFFER_H_
#define ATTEND_KERNELS_CPU_ALIGNED_BUFFER_H_

#include <cstdint>
#include <memory>
#include <new>

#include "kernels/cpu/config.h"

namespace attend::cpu {

class AlignedBuffer {
 public:
  // Room for `floats`, old content lost when it must grow. False when the host has no memory; the
  // old buffer is gone then too.
  bool Reserve(int64_t floats) {
    if (floats <= capacity_) return true;
    capacity_ = 0;
    data_.reset();
    if (floats > kMostFloats) return false;
    data_.reset(static_cast<float*>(
        ::operator new[](static_cast<size_t>(floats) * sizeof(float), kAlignment, std::nothrow)));
    if (data_ == nullptr) return false;
    capacity_ = floats;
    return true;
  }

  float* data() const { return data_.get(); }
  int64_t bytes() const { return capacity_ * static_cast<int64_t>(sizeof(float)); }

 private:
  static constexpr std::align_val_t kAlignment{2 * kCacheLine};
  static constexpr int64_t kMostFloats = INT64_MAX / static_cast<int64_t>(2 * sizeof(float));

  struct Free {
    void operator()(float* data) const { ::operator delete[](data, kAlignment); }
  };

  std::unique_ptr<float[], Free> data_;
  int64_t capacity_ = 0;
};

}  // namespace attend::cpu

#endif  // ATTEND_KERNELS_CPU_ALIGNED_BUFFER_H_
