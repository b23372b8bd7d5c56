#include "kernels/reference/number_formats.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace attend::reference {
namespace {

// A binary format of IEEE 754 kind in 16 bits: sign, exponent, fraction.
struct Format {
  int fraction_bits;
  int min_exponent;  // of the smallest normal number
  int max_exponent;  // of the largest finite number
};

constexpr Format kF16Format = {10, -14, 15};
constexpr Format kBf16Format = {7, -126, 127};
constexpr Format kF32Format = {23, -126, 127};

double Decode(uint16_t bits, const Format& format) {
  const int fraction = bits & ((1 << format.fraction_bits) - 1);
  const int exponent_field = (bits & 0x7fff) >> format.fraction_bits;
  const int all_ones = 0x7fff >> format.fraction_bits;
  double magnitude;
  if (exponent_field == all_ones) {
    magnitude = fraction == 0 ? std::numeric_limits<double>::infinity()
                              : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent_field == 0) {
    magnitude = std::ldexp(fraction, format.min_exponent - format.fraction_bits);
  } else {
    const int significand = fraction + (1 << format.fraction_bits);
    const int exponent = exponent_field - 1 + format.min_exponent;
    magnitude = std::ldexp(significand, exponent - format.fraction_bits);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

uint16_t Encode(double value, const Format& format) {
  const int sign = std::signbit(value) ? 0x8000 : 0;
  const int infinity = (0x7fff >> format.fraction_bits) << format.fraction_bits;
  if (std::isnan(value)) {
    return static_cast<uint16_t>(sign | infinity | (1 << (format.fraction_bits - 1)));
  }
  if (std::isinf(value)) return static_cast<uint16_t>(sign | infinity);
  const double magnitude = std::fabs(value);
  if (magnitude == 0) return static_cast<uint16_t>(sign);
  // In units of the last place of its binade, a value is below 2^(fraction_bits + 1); nearbyint
  // rounds to even in the default rounding mode. A carry into the next binade, from subnormal to
  // normal or from finite to infinity comes out right since the fields lie next to each other.
  const int exponent = std::max(std::ilogb(magnitude), format.min_exponent);
  if (exponent > format.max_exponent) return static_cast<uint16_t>(sign | infinity);
  const double units = std::nearbyint(std::ldexp(magnitude, format.fraction_bits - exponent));
  const int above_subnormal = (exponent - format.min_exponent) << format.fraction_bits;
  return static_cast<uint16_t>(sign | (above_subnormal + static_cast<int>(units)));
}

const Format& FormatOf(DType dtype) {
  if (dtype == DType::kF16) return kF16Format;
  if (dtype == DType::kBF16) return kBf16Format;
  return kF32Format;
}

template <typename T>
T Load(const void* data, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * static_cast<int64_t>(sizeof(T)),
              sizeof(T));
  return value;
}

template <typename T>
void Store(void* data, int64_t index, T value) {
  std::memcpy(static_cast<char*>(data) + index * static_cast<int64_t>(sizeof(T)), &value,
              sizeof(T));
}

}  // namespace

double DecodeF16(uint16_t bits) { return Decode(bits, kF16Format); }
double DecodeBf16(uint16_t bits) { return Decode(bits, kBf16Format); }
uint16_t EncodeF16(double value) { return Encode(value, kF16Format); }
uint16_t EncodeBf16(double value) { return Encode(value, kBf16Format); }

double LoadElement(const void* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kF32:
      return Load<float>(data, index);
    case DType::kF16:
      return DecodeF16(Load<uint16_t>(data, index));
    case DType::kBF16:
      return DecodeBf16(Load<uint16_t>(data, index));
  }
  return std::numeric_limits<double>::quiet_NaN();
}

void StoreElement(void* data, DType dtype, int64_t index, double value) {
  switch (dtype) {
    case DType::kF32:
      return Store<float>(data, index, static_cast<float>(value));
    case DType::kF16:
      return Store<uint16_t>(data, index, EncodeF16(value));
    case DType::kBF16:
      return Store<uint16_t>(data, index, EncodeBf16(value));
  }
}

double Rounded(double value, DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<float>(value);
    case DType::kF16:
      return DecodeF16(EncodeF16(value));
    case DType::kBF16:
      return DecodeBf16(EncodeBf16(value));
  }
  return std::numeric_limits<double>::quiet_NaN();
}

double RoundingStep(double value, DType dtype) {
  const Format& format = FormatOf(dtype);
  const double magnitude = std::fabs(value);
  const int exponent =
      magnitude == 0 ? format.min_exponent : std::max(std::ilogb(magnitude), format.min_exponent);
  return std::ldexp(1.0, exponent - format.fraction_bits);
}

}  // namespace attend::reference
