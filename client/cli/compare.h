// Compares an answer with an expected array.

#ifndef ATTEND_CLIENT_CLI_COMPARE_H_
#define ATTEND_CLIENT_CLI_COMPARE_H_

#include "cli/npy.h"

namespace attend::cli {

struct Comparison {
  double max_error = 0;  // infinity when a NaN or infinity does not stand where it should
  double allowed = 0;    // tolerance times the largest finite |expected|
  bool within = false;
};

// uint16 elements are bf16. Equal infinities match, NaN matches NaN. REQUIRES: equal shapes.
Comparison Compare(const NpyArray& expected, const NpyArray& actual, double tolerance);

}  // namespace attend::cli

#endif  // ATTEND_CLIENT_CLI_COMPARE_H_
