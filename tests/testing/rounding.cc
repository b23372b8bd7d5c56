#include "tests/testing/rounding.h"

#include "kernels/reference/number_formats.h"

namespace attend::testing {
namespace {

// Errors of tanh and exp in units of u: about two steps of fp32.
constexpr double kFunctionError = 4;
// Of each product of a query's and a key's element, when both are split into shorter numbers.
constexpr double kProductVariance = 3;

}  // namespace

ScoreRounding::ScoreRounding(const AttentionTask& task, double product, double squares) {
  const double scale = task.softmax_scale;
  score_ = scale * product;
  variance_ =
      scale * scale * (SumVariance(task.head_dim(), product, squares) + kProductVariance * squares);
  variance_ += score_ * score_;
  if (task.softcap > 0) {
    const double cap = task.softcap;
    const double ratio = score_ / cap;
    const double hyperbolic = std::tanh(ratio);
    const double slope = 1 - hyperbolic * hyperbolic;
    variance_ = slope * slope * (variance_ + score_ * score_);  // of the division
    score_ = cap * hyperbolic;
    variance_ += (1 + kFunctionError * kFunctionError) * score_ * score_;
  }
}

void ScoreRounding::Add(double term, double variance) {
  score_ += term;
  variance_ += variance + score_ * score_;
}

double ProbabilityVariance(double depth, DType dtype) {
  // Half a rounding step at 1, in units of u.
  const double rounding = reference::RoundingStep(1, dtype) * 0x1p23;
  return rounding * rounding + kFunctionError * kFunctionError + depth * depth;
}

}  // namespace attend::testing
