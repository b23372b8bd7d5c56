// Dense fp32 pieces of unfused attention: conversions, blocked products, exponentials. Each runs on
// the widest vectors of the host (Highway's run-time dispatch). All functions are thread-safe.
//
// The right factor of a product is packed once into panels of PanelWidth() columns: element (k, c)
// of a [depth, columns] matrix lies at (c / w) * depth * w + k * w + c % w, padded with zeros.

#ifndef ATTEND_KERNELS_UNFUSED_PRODUCTS_H_
#define ATTEND_KERNELS_UNFUSED_PRODUCTS_H_

#include <cstdint>

#include "kernels/attention.h"

namespace attend::unfused {

void ToFloats(const void* source, DType dtype, int64_t count, float* out);
// Rounds to nearest even.
void FromFloats(const float* source, int64_t count, DType dtype, void* out);

int64_t PanelWidth();
// Floats that the panels of a [depth, columns] matrix take.
int64_t PanelFloats(int64_t depth, int64_t columns);
// `b` is [depth, columns], row-major.
void PackPanels(const float* b, int64_t depth, int64_t columns, float* panels);
// `b` is [columns, depth], row-major: its transpose is packed.
void PackTransposedPanels(const float* b, int64_t depth, int64_t columns, float* panels);

// c [rows, columns] = a [rows, depth] * the packed matrix. Every element sums in the same order
// whatever `rows` is.
void Multiply(const float* a, int64_t a_stride, int64_t rows, int64_t depth, const float* panels,
              int64_t columns, float* c, int64_t c_stride);

// x[i] = exp(x[i] - maximum); returns their sum. REQUIRES: maximum is not -infinity.
float ExpAndSum(float* x, int64_t count, float maximum);

}  // namespace attend::unfused

#endif  // ATTEND_KERNELS_UNFUSED_PRODUCTS_H_
