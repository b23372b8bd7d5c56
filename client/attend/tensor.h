// Tensors as the client library sees them: views of the caller's memory, and owned results.
//
// Shapes: one sequence is q [Sq, Hq, D], k [Sk, Hk, D], v [Sk, Hk, Dv]; a padded batch adds a
// leading B to all; a ragged batch is [total_q, Hq, D], [total_k, Hk, D], [total_k, Hk, Dv].
// Units: sizes count bytes where they say bytes, and elements otherwise. Data is row-major,
// contiguous and little-endian.
// Ownership: a TensorRef owns nothing; its bytes must stay valid and unchanged until the call that
// uses it has ended. A Tensor owns its bytes, unless the call was given a destination.
// Threads: plain values, no locks; share them as you would share any const object.

#ifndef ATTEND_CLIENT_TENSOR_H_
#define ATTEND_CLIENT_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace attend::client {

enum class DataType : uint8_t { kFp32, kFp16, kBf16 };

// Bytes of one element.
constexpr int64_t ElementBytes(DataType type) { return type == DataType::kFp32 ? 4 : 2; }

// "fp32", "fp16" or "bf16".
std::string_view Name(DataType type);

using Shape = std::vector<int64_t>;

// A view of a tensor in the caller's memory. `size_bytes` must be the exact product of shape and
// element size; a call that finds otherwise is refused before anything is sent.
struct TensorRef {
  DataType dtype = DataType::kFp32;
  Shape shape = {};
  const void* data = nullptr;  // may be null only when size_bytes is 0
  size_t size_bytes = 0;

  // 16-bit types travel as their bit patterns.
  static TensorRef Fp32(std::span<const float> values, Shape shape) {
    return {DataType::kFp32, std::move(shape), values.data(), values.size_bytes()};
  }
  static TensorRef Fp16(std::span<const uint16_t> bits, Shape shape) {
    return {DataType::kFp16, std::move(shape), bits.data(), bits.size_bytes()};
  }
  static TensorRef Bf16(std::span<const uint16_t> bits, Shape shape) {
    return {DataType::kBf16, std::move(shape), bits.data(), bits.size_bytes()};
  }
};

// A result. Move-only.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Tensor&&) = default;
  Tensor& operator=(Tensor&&) = default;

  // Memory of its own, uninitialised. REQUIRES: `size_bytes` is the product of shape and element.
  static Tensor Allocate(DataType dtype, Shape shape, size_t size_bytes);
  // Memory of the caller's, who keeps it valid for as long as the tensor is used.
  static Tensor Borrow(DataType dtype, Shape shape, std::span<std::byte> memory);

  // The same bytes under another type and shape.
  Tensor WithShape(DataType dtype, Shape shape) &&;

  DataType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::span<const std::byte> bytes() const { return memory_; }
  std::span<std::byte> mutable_bytes() { return memory_; }

  // The elements, read as T. REQUIRES: sizeof(T) == ElementBytes(dtype()).
  template <typename T>
  std::span<const T> values() const {
    return {reinterpret_cast<const T*>(memory_.data()), memory_.size() / sizeof(T)};
  }

  TensorRef ref() const { return {dtype_, shape_, memory_.data(), memory_.size()}; }

 private:
  DataType dtype_ = DataType::kFp32;
  Shape shape_;
  std::unique_ptr<std::byte[]> owned_;
  std::span<std::byte> memory_;
};

}  // namespace attend::client

#endif  // ATTEND_CLIENT_TENSOR_H_
