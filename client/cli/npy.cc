#include "cli/npy.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <string_view>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace attend::cli {
namespace {

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr size_t kMaxHeader = 64 << 10;  // NumPy's are 118 bytes
constexpr size_t kMaxDimensions = 32;    // NumPy's own limit
constexpr size_t kAlignment = 64;        // of the data in the file, as NumPy writes it

struct TypeRow {
  std::string_view name;
  NpyType type;
  int64_t bytes;
};
constexpr TypeRow kTypes[] = {{"<f2", NpyType::kF16, 2},
                              {"<f4", NpyType::kF32, 4},
                              {"<f8", NpyType::kF64, 8},
                              {"<u2", NpyType::kU16, 2}};

const TypeRow& RowOf(NpyType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return row;
  }
  return kTypes[0];
}

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

absl::Status Bad(const std::string& path, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": not a usable .npy file: ", absl::string_view(what.data(), what.size())));
}

struct Header {
  std::optional<NpyType> type;
  std::optional<bool> fortran_order;
  std::optional<std::vector<int64_t>> shape;
};

// Reads the Python dictionary of a header: exactly the three keys that NumPy writes.
class HeaderParser {
 public:
  explicit HeaderParser(std::string_view text) : rest_(text) {}

  // An empty string, or what is wrong.
  std::string_view Parse(Header* header) {
    if (!Eat('{')) return "the header is no dictionary";
    while (!Eat('}')) {
      std::string_view key;
      if (!Quoted(&key) || !Eat(':')) return "the header has a malformed key";
      if (key == "descr") {
        std::string_view descr;
        if (header->type.has_value() || !Quoted(&descr)) return "malformed descr";
        for (const TypeRow& row : kTypes) {
          if (row.name == descr) header->type = row.type;
        }
        if (!header->type.has_value()) return "its type is none of <f2, <f4, <f8, <u2";
      } else if (key == "fortran_order") {
        if (header->fortran_order.has_value()) return "fortran_order stands twice";
        if (Word("False")) {
          header->fortran_order = false;
        } else if (Word("True")) {
          header->fortran_order = true;
        } else {
          return "malformed fortran_order";
        }
      } else if (key == "shape") {
        if (header->shape.has_value() || !ReadShape(header)) return "malformed shape";
      } else {
        return "the header has an unknown key";
      }
      if (!Eat(',')) {
        if (!Eat('}')) return "the header's dictionary does not end";
        break;
      }
    }
    SkipSpace();
    if (!rest_.empty()) return "something follows the header's dictionary";
    if (!header->type || !header->fortran_order || !header->shape) return "the header lacks a key";
    return "";
  }

 private:
  void SkipSpace() {
    while (!rest_.empty() && (rest_[0] == ' ' || rest_[0] == '\n')) rest_.remove_prefix(1);
  }
  bool Eat(char c) {
    SkipSpace();
    if (rest_.empty() || rest_[0] != c) return false;
    rest_.remove_prefix(1);
    return true;
  }
  bool Word(std::string_view word) {
    SkipSpace();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }
  bool Quoted(std::string_view* text) {
    SkipSpace();
    if (rest_.empty() || (rest_[0] != '\'' && rest_[0] != '"')) return false;
    const size_t end = rest_.find(rest_[0], 1);
    if (end == std::string_view::npos) return false;
    *text = rest_.substr(1, end - 1);
    rest_.remove_prefix(end + 1);
    return true;
  }
  bool Number(int64_t* value) {
    SkipSpace();
    size_t digits = 0;
    *value = 0;
    for (; digits < rest_.size() && rest_[digits] >= '0' && rest_[digits] <= '9'; ++digits) {
      if (__builtin_mul_overflow(*value, 10, value) ||
          __builtin_add_overflow(*value, rest_[digits] - '0', value)) {
        return false;
      }
    }
    rest_.remove_prefix(digits);
    return digits > 0;
  }
  bool ReadShape(Header* header) {
    if (!Eat('(')) return false;
    std::vector<int64_t> shape;
    while (!Eat(')')) {
      int64_t dimension = 0;
      if (shape.size() == kMaxDimensions || !Number(&dimension)) return false;
      shape.push_back(dimension);
      if (!Eat(',')) {
        if (shape.size() == 1 || !Eat(')')) return false;  // (3) is a number in Python
        break;
      }
    }
    header->shape = std::move(shape);
    return true;
  }

  std::string_view rest_;
};

std::optional<int64_t> BytesOf(NpyType type, std::span<const int64_t> shape) {
  int64_t bytes = ElementBytes(type);
  bool empty = false;
  for (int64_t dimension : shape) {
    if (dimension == 0) {
      empty = true;
    } else if (__builtin_mul_overflow(bytes, dimension, &bytes)) {
      return std::nullopt;
    }
  }
  return empty ? 0 : bytes;
}

}  // namespace

int64_t ElementBytes(NpyType type) { return RowOf(type).bytes; }

absl::StatusOr<NpyArray> ReadNpy(const std::string& path) {
  std::error_code error;
  const uintmax_t file_size = std::filesystem::file_size(path, error);
  const File file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (file == nullptr || error) {
    return absl::NotFoundError(absl::StrCat(path, ": cannot be read"));
  }
  const auto read = [&file](void* data, size_t size) {
    return size == 0 || std::fread(data, 1, size, file.get()) == size;
  };

  unsigned char start[8];
  if (!read(start, sizeof start) || std::memcmp(start, kMagic.data(), kMagic.size()) != 0) {
    return Bad(path, "it does not start like one");
  }
  const int version = start[6];
  if (version < 1 || version > 3) return Bad(path, "its version is unknown");
  unsigned char length_bytes[4] = {};
  const size_t length_size = version == 1 ? 2 : 4;
  if (!read(length_bytes, length_size)) return Bad(path, "it ends in the header");
  size_t length = 0;
  for (size_t i = 0; i < length_size; ++i) length |= size_t{length_bytes[i]} << (8 * i);
  if (length > kMaxHeader) return Bad(path, "its header is longer than 64 KiB");
  std::string text(length, '\0');
  if (!read(text.data(), length)) return Bad(path, "it ends in the header");

  Header header;
  if (const std::string_view what = HeaderParser(text).Parse(&header); !what.empty()) {
    return Bad(path, what);
  }
  if (*header.fortran_order && header.shape->size() > 1) {
    return Bad(path, "it is column-major (fortran_order); save numpy.ascontiguousarray(a)");
  }
  // The file says how much there is before anything is allocated for it.
  const std::optional<int64_t> bytes = BytesOf(*header.type, *header.shape);
  const uintmax_t present = file_size - std::min<uintmax_t>(file_size, 8 + length_size + length);
  if (!bytes.has_value() || static_cast<uintmax_t>(*bytes) != present) {
    return Bad(path, absl::StrCat("shape (", absl::StrJoin(*header.shape, ", "),
                                  ") does not match its ", present, " bytes of data"));
  }
  NpyArray array{*header.type, *std::move(header.shape), {}};
  array.data.resize(static_cast<size_t>(*bytes));
  if (!read(array.data.data(), array.data.size())) return Bad(path, "it ends early");
  return array;
}

absl::Status WriteNpy(const std::string& path, NpyType type, std::span<const int64_t> shape,
                      std::span<const std::byte> data) {
  std::string text = absl::StrCat("{'descr': '", std::string(RowOf(type).name),
                                  "', 'fortran_order': False, 'shape': (",
                                  absl::StrJoin(shape, ", "), shape.size() == 1 ? ",), }" : "), }");
  const size_t before = kMagic.size() + 4;
  text.append(kAlignment - 1 - (before + text.size()) % kAlignment, ' ');
  text.push_back('\n');

  File file(std::fopen(path.c_str(), "wb"), &std::fclose);
  if (file == nullptr) return absl::NotFoundError(absl::StrCat(path, ": cannot be written"));
  const unsigned char version_and_length[4] = {1, 0, static_cast<unsigned char>(text.size() & 0xff),
                                               static_cast<unsigned char>(text.size() >> 8)};
  bool ok = std::fwrite(kMagic.data(), 1, kMagic.size(), file.get()) == kMagic.size() &&
            std::fwrite(version_and_length, 1, 4, file.get()) == 4 &&
            std::fwrite(text.data(), 1, text.size(), file.get()) == text.size() &&
            (data.empty() || std::fwrite(data.data(), 1, data.size(), file.get()) == data.size());
  ok = std::fclose(file.release()) == 0 && ok;
  if (!ok)
    return absl::UnknownError(absl::StrCat(path, ": ", std::generic_category().message(errno)));
  return absl::OkStatus();
}

}  // namespace attend::cli
