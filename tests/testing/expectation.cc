#include "tests/testing/expectation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/reference/number_formats.h"
#include "tests/testing/rounding.h"

namespace attend::testing {
namespace {

using reference::Answer;
using reference::LoadElement;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::vector<float> HeadAsFloats(const TensorView& view, int64_t head, int64_t rows) {
  std::vector<float> values(static_cast<size_t>(rows * view.columns));
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t c = 0; c < view.columns; ++c) {
      values[static_cast<size_t>(i * view.columns + c)] = static_cast<float>(
          LoadElement(view.data, view.dtype, i * view.row_stride + head * view.head_stride + c));
    }
  }
  return values;
}

// One row of one head, with the buffers that rows share.
struct PlainRow {
  explicit PlainRow(const AttentionTask& plain_task)
      : task(plain_task),
        query(static_cast<size_t>(task.head_dim())),
        scores(static_cast<size_t>(task.seqlen_k)),
        variances(scores.size()),
        sums(static_cast<size_t>(task.head_dim_v())),
        columns(sums.size()) {}

  void Compute(int64_t head, int64_t row, double* o);

  const AttentionTask& task;
  std::vector<float> k, v;  // of the head's kv head
  float lse = -kInfinity;
  double o_noise = 0, lse_noise = 0;

 private:
  void ComputeScores(int64_t head, int64_t row);
  void EstimateNoise(float maximum, float sum, float sink, const double* o);

  std::vector<float> query, scores;
  std::vector<double> variances;  // of the scores
  std::vector<float> sums;
  // Of one output.
  struct Column {
    double score_variance = 0;                               // from errors of scores
    double probability_variance = 0, probability_error = 0;  // of the probabilities' own
    double squares = 0;                                      // of the terms summed
  };
  std::vector<Column> columns;
};

// Fills `scores`, with -infinity where masked, and the variances of their errors.
void PlainRow::ComputeScores(int64_t head, int64_t row) {
  const int64_t depth = task.head_dim();
  for (int64_t j = 0; j < task.seqlen_k; ++j) {
    float& score = scores[static_cast<size_t>(j)];
    score = -kInfinity;
    if (!reference::Sees(task.mask, row, j, task.seqlen_q, task.seqlen_k)) continue;
    float bias = 0;
    if (!task.bias.absent()) {
      bias = static_cast<float>(
          LoadElement(task.bias.data, task.bias.dtype,
                      head * task.bias.head_stride + row * task.bias.row_stride + j));
      if (bias == -kInfinity) continue;
    }
    float product = 0;
    double term_squares = 0;
    const float* key = k.data() + j * depth;
    for (int64_t c = 0; c < depth; ++c) {
      const float term = query[static_cast<size_t>(c)] * key[c];
      product += term;
      term_squares += static_cast<double>(term) * static_cast<double>(term);
    }
    score = task.softmax_scale * product;
    if (task.softcap > 0) score = task.softcap * std::tanh(score / task.softcap);
    ScoreRounding rounding(task, static_cast<double>(product), term_squares);
    if (!task.bias.absent()) {
      score += bias;
      rounding.Add(static_cast<double>(bias), 0);
    }
    if (!task.alibi_slopes.absent()) {
      const float term = task.alibi_slopes.data[head] *
                         static_cast<float>(std::abs(row + task.seqlen_k - task.seqlen_q - j));
      score -= term;
      rounding.Add(-static_cast<double>(term), static_cast<double>(term * term));
    }
    variances[static_cast<size_t>(j)] = rounding.variance();
  }
}

// From the probabilities in `scores`, to first order; see rounding.h.
void PlainRow::EstimateNoise(float maximum, float sum, float sink, const double* o) {
  std::fill(columns.begin(), columns.end(), Column());
  double lse_variance = static_cast<double>(lse) * static_cast<double>(lse);
  int64_t keys = 0;
  for (int64_t j = 0; j < task.seqlen_k; ++j) {
    const double p = static_cast<double>(scores[static_cast<size_t>(j)]);
    if (p == 0) continue;
    ++keys;
    const double score_variance = p * p * variances[static_cast<size_t>(j)];
    const double own_variance = p * p * ProbabilityVariance(-std::log(p), task.dtype());
    const double own_error = std::sqrt(own_variance);
    lse_variance += score_variance;
    const float* value = v.data() + j * task.head_dim_v();
    for (size_t c = 0; c < columns.size(); ++c) {
      const double x = static_cast<double>(value[c]);
      const double spread = x - o[c];
      columns[c].score_variance += score_variance * spread * spread;
      columns[c].probability_variance += own_variance * x * x;
      columns[c].probability_error += own_error * std::fabs(x);
      columns[c].squares += p * p * x * x;
    }
  }
  // A sink takes part of the sum as a key of value 0 does.
  double sink_variance = 0;
  if (sink > -kInfinity) {
    const double p = static_cast<double>(std::exp(sink - maximum) / sum);
    sink_variance = p * p * static_cast<double>(sink) * static_cast<double>(sink);
  }
  o_noise = 0;
  for (size_t c = 0; c < columns.size(); ++c) {
    const Column& column = columns[c];
    const double noise = LikelyError(column.score_variance + sink_variance * o[c] * o[c] +
                                     SumVariance(keys, o[c], column.squares)) +
                         LikelyError(column.probability_variance, column.probability_error);
    o_noise = std::max(o_noise, noise);
  }
  lse_noise = LikelyError(lse_variance + sink_variance);
}

void PlainRow::Compute(int64_t head, int64_t row, double* o) {
  std::fill(o, o + task.head_dim_v(), 0.0);
  lse = -kInfinity;
  o_noise = lse_noise = 0;
  if (row >= task.seqlen_q) return;
  for (int64_t c = 0; c < task.head_dim(); ++c) {
    query[static_cast<size_t>(c)] = static_cast<float>(LoadElement(
        task.q.data, task.q.dtype, row * task.q.row_stride + head * task.q.head_stride + c));
  }
  ComputeScores(head, row);
  float maximum = -kInfinity;
  for (const float score : scores) maximum = std::max(maximum, score);
  const float sink = task.sinks.absent() ? -kInfinity : task.sinks.data[head];
  lse = sink;
  if (maximum == -kInfinity) return;
  maximum = std::max(maximum, sink);
  float sum = std::exp(sink - maximum);
  for (float& score : scores) {
    score = std::exp(score - maximum);
    sum += score;
  }
  lse = maximum + std::log(sum);
  std::fill(sums.begin(), sums.end(), 0.0f);
  for (int64_t j = 0; j < task.seqlen_k; ++j) {
    float& p = scores[static_cast<size_t>(j)];
    p = static_cast<float>(reference::Rounded(p / sum, task.dtype()));
    if (p == 0) continue;
    for (int64_t c = 0; c < task.head_dim_v(); ++c) {
      sums[static_cast<size_t>(c)] += p * v[static_cast<size_t>(j * task.head_dim_v() + c)];
    }
  }
  for (int64_t c = 0; c < task.head_dim_v(); ++c) {
    o[c] = reference::Rounded(sums[static_cast<size_t>(c)], task.dtype());
  }
  EstimateNoise(maximum, sum, sink, o);
}

}  // namespace

PlainAnswer PlainAttention(const AttentionTask& task, const Answer& answer) {
  PlainAnswer plain;
  plain.o.resize(answer.o.size());
  PlainRow row(task);
  const int64_t group = task.heads_q() / task.heads_k();
  int64_t converted = -1;
  for (const int64_t head : answer.heads) {
    if (head / group != converted) {
      converted = head / group;
      row.k = HeadAsFloats(task.k, converted, task.seqlen_k);
      row.v = HeadAsFloats(task.v, converted, task.seqlen_k);
    }
    for (const int64_t i : answer.rows) {
      row.Compute(head, i,
                  plain.o.data() + static_cast<int64_t>(plain.lse.size()) * task.head_dim_v());
      plain.lse.push_back(row.lse);
      plain.o_noise.push_back(row.o_noise);
      plain.lse_noise.push_back(row.lse_noise);
    }
  }
  return plain;
}

Expectation ExpectRows(const AttentionTask& task, absl::Span<const int64_t> heads,
                       absl::Span<const int64_t> rows) {
  Expectation expected;
  expected.answer = reference::ComputeRows(task, heads, rows);
  const Answer& answer = expected.answer;
  const bool fp32 = task.dtype() == DType::kF32;
  const PlainAnswer plain = PlainAttention(task, answer);
  const double times = task.softcap > 0 && !fp32 ? 3 : 2;
  size_t at = 0;
  for (size_t h = 0; h < answer.heads.size(); ++h) {
    double error = 0, largest = 0;
    for (size_t i = 0; i < answer.rows.size(); ++i, ++at) {
      expected.lse_bound.push_back(0);
      if (answer.tainted[at] != 0 || answer.max_score[at] == -kInfinity) continue;
      expected.lse_bound.back() =
          std::max((fp32 ? 1e-5 : 1e-4) * std::max(1.0, std::fabs(answer.max_score[at])),
                   2 * plain.lse_noise[at]);
      error = std::max(error, plain.o_noise[at]);
      for (int64_t c = 0; c < task.head_dim_v(); ++c) {
        const size_t element = at * static_cast<size_t>(task.head_dim_v()) + static_cast<size_t>(c);
        error = std::max(error, std::fabs(plain.o[element] - answer.o[element]));
        largest = std::max(largest, std::fabs(answer.o[element]));
      }
    }
    expected.o_bound.push_back(fp32 ? std::max(times * error, 1e-5 * largest)
                                    : times * error +
                                          reference::RoundingStep(largest, task.dtype()));
  }
  return expected;
}

Expectation Expect(const AttentionTask& task) {
  std::vector<int64_t> heads(static_cast<size_t>(task.heads_q()));
  std::vector<int64_t> rows(static_cast<size_t>(task.padded_q()));
  std::iota(heads.begin(), heads.end(), 0);
  std::iota(rows.begin(), rows.end(), 0);
  return ExpectRows(task, heads, rows);
}

::testing::AssertionResult Matches(const AttentionTask& task, const Expectation& expected) {
  const Answer& answer = expected.answer;
  int64_t wrong = 0;
  double worst = 0;  // error over bound
  std::string first;
  const auto judge = [&](double error, double bound, double got, double want, const char* what,
                         size_t h, size_t i, int64_t c) {
    if (error <= bound) return;  // false for NaN
    ++wrong;
    const double excess = error / bound;
    if (!first.empty() && !(excess > worst)) return;
    worst = excess;
    first = absl::StrCat(what, " of head ", answer.heads[h], " row ", answer.rows[i], " column ", c,
                         ": got ", got, ", want ", want, ", bound ", bound);
  };
  size_t at = 0;
  for (size_t h = 0; h < answer.heads.size(); ++h) {
    for (size_t i = 0; i < answer.rows.size(); ++i, ++at) {
      const double* want = answer.o.data() + static_cast<int64_t>(at) * task.head_dim_v();
      const bool reads_nothing =
          answer.rows[i] >= task.seqlen_q || answer.max_score[at] == -kInfinity;
      bool want_nonfinite = false, got_nonfinite = false;
      for (int64_t c = 0; c < task.head_dim_v(); ++c) {
        const double got = LoadElement(
            task.o.data, task.o.dtype,
            answer.rows[i] * task.o.row_stride + answer.heads[h] * task.o.head_stride + c);
        want_nonfinite = want_nonfinite || !std::isfinite(want[c]);
        got_nonfinite = got_nonfinite || !std::isfinite(got);
        if (answer.tainted[at] != 0) continue;
        const double bound = reads_nothing ? 0 : expected.o_bound[h];
        judge(std::fabs(got - want[c]), bound, got, want[c], "o", h, i, c);
      }
      if (answer.tainted[at] != 0) {
        if (want_nonfinite && !got_nonfinite) {
          judge(1, 0, 0, std::numeric_limits<double>::quiet_NaN(), "o (NaN lost)", h, i, 0);
        }
        continue;
      }
      if (task.lse.absent()) continue;
      const double lse = task.lse.data[answer.heads[h] * task.lse.head_stride + answer.rows[i]];
      const double want_lse = answer.lse[at];
      if (reads_nothing) {
        judge(lse == want_lse ? 0 : 1, 0, lse, want_lse, "lse", h, i, 0);
      } else {
        judge(std::fabs(lse - want_lse), expected.lse_bound[at], lse, want_lse, "lse", h, i, 0);
      }
    }
  }
  if (wrong == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << wrong << " values out of bounds; worst: " << first;
}

}  // namespace attend::testing
