// NumPy's .npy files: one array each, little-endian, row-major.
//
// bf16 has no NumPy type; it travels as '<u2' (uint16 bit patterns) and the caller says what it
// means. Files are not trusted: header, shape and file size must agree exactly, or reading fails
// with INVALID_ARGUMENT naming the file. Format: numpy.lib.format, versions 1.0 to 3.0.

#ifndef ATTEND_CLIENT_CLI_NPY_H_
#define ATTEND_CLIENT_CLI_NPY_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace attend::cli {

enum class NpyType : uint8_t { kF16, kF32, kF64, kU16 };  // '<f2', '<f4', '<f8', '<u2'

int64_t ElementBytes(NpyType type);

struct NpyArray {
  NpyType type = NpyType::kF32;
  std::vector<int64_t> shape;
  std::vector<std::byte> data;  // aligned for its elements
};

// NOT_FOUND when the file cannot be opened.
absl::StatusOr<NpyArray> ReadNpy(const std::string& path);

// REQUIRES: data.size() is the product of shape and element size. UNKNOWN when the disk refuses.
absl::Status WriteNpy(const std::string& path, NpyType type, std::span<const int64_t> shape,
                      std::span<const std::byte> data);

}  // namespace attend::cli

#endif  // ATTEND_CLIENT_CLI_NPY_H_
