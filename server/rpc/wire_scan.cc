#include "server/rpc/wire_scan.h"

#include <algorithm>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "attend/v1/attention.pb.h"
#include "kernels/errors.h"

namespace attend {
namespace {

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kLength = 2, kFixed32 = 5 };

// What the fields of a message mean to the scan.
enum class Level : uint8_t { kStreamRequest, kRequest, kTensor };

std::optional<TensorSlot> SlotOf(uint32_t field) {
  using v1::AttendRequest;
  switch (field) {
    case AttendRequest::kQFieldNumber:
      return TensorSlot::kQ;
    case AttendRequest::kKFieldNumber:
      return TensorSlot::kK;
    case AttendRequest::kVFieldNumber:
      return TensorSlot::kV;
    case AttendRequest::kBiasFieldNumber:
      return TensorSlot::kBias;
    case AttendRequest::kAlibiSlopesFieldNumber:
      return TensorSlot::kAlibi;
    case AttendRequest::kSinksFieldNumber:
      return TensorSlot::kSinks;
    default:
      return std::nullopt;
  }
}

absl::Status Malformed(const char* what) {
  return WithReason(absl::InvalidArgumentError(absl::StrCat("malformed message: ", what)),
                    "MALFORMED");
}

void AppendVarint(uint64_t value, std::string* out) {
  while (value >= 0x80) {
    out->push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out->push_back(static_cast<char>(value));
}

// A cursor over slices.
class Reader {
 public:
  explicit Reader(absl::Span<const Fragment> slices) : slices_(slices) {
    for (const Fragment& slice : slices) size_ += slice.size;
  }

  size_t position() const { return position_; }
  size_t size() const { return size_; }

  // REQUIRES: position() < size().
  uint8_t Byte() {
    while (offset_ == slices_[index_].size) {
      ++index_;
      offset_ = 0;
    }
    ++position_;
    return slices_[index_].data[offset_++];
  }

  // Calls visit(data, size) for each piece of the next `count` bytes. REQUIRES: they exist.
  template <typename Visit>
  void Take(size_t count, Visit visit) {
    position_ += count;
    while (count > 0) {
      const Fragment& slice = slices_[index_];
      const size_t piece = std::min(count, slice.size - offset_);
      if (piece > 0) visit(slice.data + offset_, piece);
      offset_ += piece;
      count -= piece;
      if (count > 0) {
        ++index_;
        offset_ = 0;
      }
    }
  }

 private:
  absl::Span<const Fragment> slices_;
  size_t size_ = 0;
  size_t position_ = 0;
  size_t index_ = 0;
  size_t offset_ = 0;
};

class Scanner {
 public:
  Scanner(absl::Span<const Fragment> slices, size_t max_header_bytes, ScannedMessage* out)
      : reader_(slices), max_header_bytes_(max_header_bytes), out_(out) {}

  absl::Status Run(Level level) {
    return Copy(level, reader_.size(), TensorSlot::kQ, &out_->header);
  }

 private:
  // Copies the message that ends at `end` into `header`, but for inline bytes.
  absl::Status Copy(Level level, size_t end, TensorSlot slot, std::string* header) {
    while (reader_.position() < end) {
      uint64_t tag64 = 0;
      if (!ReadVarint(end, 5, &tag64)) return Malformed("bad field tag");
      const uint32_t tag = static_cast<uint32_t>(tag64);
      const uint32_t field = tag >> 3;
      if (field == 0) return Malformed("field number 0");
      AppendVarint(tag, header);
      absl::Status status;
      switch (tag & 7) {
        case kVarint: {
          uint64_t value = 0;
          if (!ReadVarint(end, 10, &value)) return Malformed("bad varint");
          AppendVarint(value, header);
          break;
        }
        case kFixed64:
          status = CopyBytes(8, end, header);
          break;
        case kFixed32:
          status = CopyBytes(4, end, header);
          break;
        case kLength:
          status = CopyLengthDelimited(level, field, end, slot, header);
          break;
        default:  // groups: no field of ours is one
          return Malformed("unknown field with a group wire type");
      }
      if (!status.ok()) return status;
      if (header->size() > max_header_bytes_) {
        return WithReason(
            absl::InvalidArgumentError(absl::StrCat(
                "the request without its tensors is larger than ", max_header_bytes_, " bytes")),
            "TOO_LARGE");
      }
    }
    return absl::OkStatus();
  }

  absl::Status CopyLengthDelimited(Level level, uint32_t field, size_t end, TensorSlot slot,
                                   std::string* header) {
    uint64_t length = 0;
    // As the generated parser: at most 5 bytes, and some room below 2^31.
    constexpr uint64_t kMostLength = (uint64_t{1} << 31) - 1 - 16;
    if (!ReadVarint(end, 5, &length) || length > kMostLength) return Malformed("bad length");
    if (length > end - reader_.position())
      return Malformed("a field passes the end of its message");
    const size_t size = static_cast<size_t>(length);

    if (level == Level::kTensor && field == v1::Tensor::kInlineFieldNumber) {
      InlineBytes& bytes = out_->tensors[static_cast<size_t>(slot)];
      bytes.fragments.clear();  // the last one wins
      bytes.size = static_cast<int64_t>(size);
      reader_.Take(size, [&](const uint8_t* data, size_t piece) {
        bytes.fragments.push_back({data, piece});
      });
      AppendVarint(0, header);
      return absl::OkStatus();
    }

    std::optional<Level> inner;
    if (level == Level::kStreamRequest && field == v1::AttendStreamRequest::kAttendFieldNumber) {
      inner = Level::kRequest;
    } else if (level == Level::kRequest) {
      if (std::optional<TensorSlot> found = SlotOf(field)) {
        inner = Level::kTensor;
        slot = *found;
      }
    }
    if (!inner) {
      AppendVarint(length, header);
      return CopyBytes(size, end, header);
    }
    std::string nested;
    if (absl::Status status = Copy(*inner, reader_.position() + size, slot, &nested);
        !status.ok()) {
      return status;
    }
    AppendVarint(nested.size(), header);
    header->append(nested);
    return absl::OkStatus();
  }

  absl::Status CopyBytes(size_t count, size_t end, std::string* header) {
    if (count > end - reader_.position()) return Malformed("a field passes the end of its message");
    if (count > max_header_bytes_) {
      header->resize(max_header_bytes_ + 1);  // refused by the caller, with its own words
      return absl::OkStatus();
    }
    reader_.Take(count, [&](const uint8_t* data, size_t piece) {
      header->append(reinterpret_cast<const char*>(data), piece);
    });
    return absl::OkStatus();
  }

  bool ReadVarint(size_t end, int max_bytes, uint64_t* value) {
    uint64_t result = 0;
    for (int i = 0; i < max_bytes; ++i) {
      if (reader_.position() == end) return false;
      const uint8_t byte = reader_.Byte();
      result |= static_cast<uint64_t>(byte & 0x7f) << (7 * i);
      if (byte < 0x80) {
        *value = result;
        return true;
      }
    }
    return false;
  }

  Reader reader_;
  const size_t max_header_bytes_;
  ScannedMessage* const out_;
};

}  // namespace

const char* Name(TensorSlot slot) {
  static constexpr const char* kNames[kTensorSlots] = {"q",    "k", "v", "bias", "alibi_slopes",
                                                       "sinks"};
  return kNames[static_cast<size_t>(slot)];
}

absl::StatusOr<ScannedMessage> ScanMessage(absl::Span<const Fragment> slices, MessageKind kind,
                                           size_t max_header_bytes) {
  ScannedMessage message;
  Scanner scanner(slices, max_header_bytes, &message);
  absl::Status status =
      scanner.Run(kind == MessageKind::kAttendRequest ? Level::kRequest : Level::kStreamRequest);
  if (!status.ok()) return status;
  return message;
}

}  // namespace attend
