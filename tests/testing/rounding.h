// How far fp32 arithmetic may carry a right answer from the exact one, known before any backend has
// answered: the part of the judge's bound that does not hang on luck.
//
// The model. An fp32 operation whose result has magnitude M errs by at most u * M, u = 2^-24, and
// the errors of different operations count as independent and even: each has variance
// (u * M)^2 / 3 at most. All variances below are in units of u^2 / 3, to first order in u.
//
// A sum of n terms with total S and sum of squares Q passes through n partial sums. Over all orders
// of the terms the mean of their squares adds up to (n + 1) * (2 * S^2 + Q) / 6. Where all terms
// agree in sign that is about n * S^2 / 3; where they cancel, it is what is left of S plus a random
// walk. n * u * sum |terms|, which no order exceeds, is some sqrt(n) times more than ever happens.
//
// A score of magnitude M is thus wrong by about u * M for each operation that it passed, and its
// probability by that factor: a bias near -10,000 leaves 6e-4 per operation, whoever computes it.
// The output moves by the sum over keys of p * error * (v - o), the log-sum-exp by that of
// p * error.
//
// Implementations differ by a few operations. Those counted are the contract's, a conversion to
// base 2 and, for each product of two inputs, a split into shorter numbers that drops less than 2
// u.

#ifndef ATTEND_TESTS_TESTING_ROUNDING_H_
#define ATTEND_TESTS_TESTING_ROUNDING_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/attention.h"

namespace attend::testing {

// An error of three standard deviations, from a variance in units of u^2 / 3.
inline double LikelyError(double variance) { return std::sqrt(3 * variance) * 0x1p-24; }

// The same of single operations, from the sum of their variances; never more than their largest
// errors, whose sum in units of u is `largest`, as with one operation that outweighs the others.
inline double LikelyError(double variance, double largest) {
  return std::min(LikelyError(variance), largest * 0x1p-24);
}

// Of a sum of `count` rounded terms, from its total and the sum of its terms' squares.
inline double SumVariance(int64_t count, double total, double squares) {
  return static_cast<double>(count + 1) * (2 * total * total + squares) / 6;
}

// A score on its way from q . k to the exponential's argument, with the variance of its error.
class ScoreRounding {
 public:
  // The scaled and capped product of `task`'s query and key, from the sum over columns and the sum
  // of squares.
  ScoreRounding(const AttentionTask& task, double product, double squares);

  // The bias or the ALiBi term, itself of `variance`.
  void Add(double term, double variance);

  double score() const { return score_; }
  // With the conversion to base 2.
  double variance() const { return variance_ + score_ * score_; }

 private:
  double score_;
  double variance_;
};

// Of a probability, relative to it: the exponential of `depth` below the row's maximum, and the
// rounding to `dtype`.
double ProbabilityVariance(double depth, DType dtype);

}  // namespace attend::testing

#endif  // ATTEND_TESTS_TESTING_ROUNDING_H_
