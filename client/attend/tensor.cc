#include "attend/tensor.h"

namespace attend::client {

std::string_view Name(DataType type) {
  switch (type) {
    case DataType::kFp32:
      return "fp32";
    case DataType::kFp16:
      return "fp16";
    case DataType::kBf16:
      return "bf16";
  }
  return "unknown";
}

Tensor Tensor::Allocate(DataType dtype, Shape shape, size_t size_bytes) {
  Tensor tensor;
  tensor.dtype_ = dtype;
  tensor.shape_ = std::move(shape);
  tensor.owned_ = std::make_unique_for_overwrite<std::byte[]>(size_bytes);
  tensor.memory_ = {tensor.owned_.get(), size_bytes};
  return tensor;
}

Tensor Tensor::Borrow(DataType dtype, Shape shape, std::span<std::byte> memory) {
  Tensor tensor;
  tensor.dtype_ = dtype;
  tensor.shape_ = std::move(shape);
  tensor.memory_ = memory;
  return tensor;
}

Tensor Tensor::WithShape(DataType dtype, Shape shape) && {
  dtype_ = dtype;
  shape_ = std::move(shape);
  return std::move(*this);
}

}  // namespace attend::client
