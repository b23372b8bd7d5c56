// fp16, bf16 and fp32 in bits: conversions written for being right, as the oracle's own.
//
// Encoding rounds to nearest, ties to even, straight from double (no double rounding): overflow
// becomes infinity, subnormals are kept, NaN stays NaN (quiet).

#ifndef ATTEND_KERNELS_REFERENCE_NUMBER_FORMATS_H_
#define ATTEND_KERNELS_REFERENCE_NUMBER_FORMATS_H_

#include <cstdint>

#include "kernels/attention.h"

namespace attend::reference {

double DecodeF16(uint16_t bits);
double DecodeBf16(uint16_t bits);
uint16_t EncodeF16(double value);
uint16_t EncodeBf16(double value);

// Element `index` of an array of `dtype`.
double LoadElement(const void* data, DType dtype, int64_t index);
void StoreElement(void* data, DType dtype, int64_t index, double value);

// `value` rounded to `dtype` and back.
double Rounded(double value, DType dtype);

// Distance from |value|'s binade to the next representable number of `dtype`: one rounding step.
// REQUIRES: value is finite.
double RoundingStep(double value, DType dtype);

}  // namespace attend::reference

#endif  // ATTEND_KERNELS_REFERENCE_NUMBER_FORMATS_H_
