#include "tests/testing/expectation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/reference/number_formats.h"

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

float DotFloat(const float* a, const float* b, int64_t n) {
  float sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

// Scores of one row in fp32; -infinity where masked.
void PlainScores(const AttentionTask& task, int64_t head, int64_t row, const float* query,
                 const std::vector<float>& k, std::vector<float>& scores) {
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
    score = task.softmax_scale * DotFloat(query, k.data() + j * task.head_dim(), task.head_dim());
    if (task.softcap > 0) score = task.softcap * std::tanh(score / task.softcap);
    score += bias;
    if (!task.alibi_slopes.absent()) {
      score -= task.alibi_slopes.data[head] *
               static_cast<float>(std::abs(row + task.seqlen_k - task.seqlen_q - j));
    }
  }
}

}  // namespace

std::vector<double> PlainAttention(const AttentionTask& task, const Answer& answer) {
  std::vector<double> o(answer.o.size());
  std::vector<float> query(static_cast<size_t>(task.head_dim()));
  std::vector<float> scores(static_cast<size_t>(task.seqlen_k));
  std::vector<float> sums(static_cast<size_t>(task.head_dim_v()));
  std::vector<float> k, v;
  const int64_t group = task.heads_q() / task.heads_k();
  int64_t converted = -1;
  size_t at = 0;
  for (const int64_t head : answer.heads) {
    if (head / group != converted) {
      converted = head / group;
      k = HeadAsFloats(task.k, converted, task.seqlen_k);
      v = HeadAsFloats(task.v, converted, task.seqlen_k);
    }
    for (const int64_t row : answer.rows) {
      double* out = o.data() + static_cast<int64_t>(at++) * task.head_dim_v();
      if (row >= task.seqlen_q) continue;
      for (int64_t c = 0; c < task.head_dim(); ++c) {
        query[static_cast<size_t>(c)] = static_cast<float>(LoadElement(
            task.q.data, task.q.dtype, row * task.q.row_stride + head * task.q.head_stride + c));
      }
      PlainScores(task, head, row, query.data(), k, scores);
      float maximum = -kInfinity;
      for (const float score : scores) maximum = std::max(maximum, score);
      if (maximum == -kInfinity) continue;
      const float sink = task.sinks.absent() ? -kInfinity : task.sinks.data[head];
      maximum = std::max(maximum, sink);
      float sum = std::exp(sink - maximum);
      for (float& score : scores) {
        score = std::exp(score - maximum);
        sum += score;
      }
      std::fill(sums.begin(), sums.end(), 0.0f);
      for (int64_t j = 0; j < task.seqlen_k; ++j) {
        const float p = static_cast<float>(
            reference::Rounded(scores[static_cast<size_t>(j)] / sum, task.dtype()));
        if (p == 0) continue;
        for (int64_t c = 0; c < task.head_dim_v(); ++c) {
          sums[static_cast<size_t>(c)] += p * v[static_cast<size_t>(j * task.head_dim_v() + c)];
        }
      }
      for (int64_t c = 0; c < task.head_dim_v(); ++c) {
        out[c] = reference::Rounded(sums[static_cast<size_t>(c)], task.dtype());
      }
    }
  }
  return o;
}

Expectation ExpectRows(const AttentionTask& task, absl::Span<const int64_t> heads,
                       absl::Span<const int64_t> rows) {
  Expectation expected;
  expected.answer = reference::ComputeRows(task, heads, rows);
  const Answer& answer = expected.answer;
  expected.lse_bound = task.dtype() == DType::kF32 ? 1e-5 : 1e-4;
  const std::vector<double> plain = PlainAttention(task, answer);
  size_t at = 0;
  for (size_t h = 0; h < answer.heads.size(); ++h) {
    double error = 0, largest = 0;
    for (size_t i = 0; i < answer.rows.size(); ++i, ++at) {
      if (answer.tainted[at] != 0) continue;
      for (int64_t c = 0; c < task.head_dim_v(); ++c) {
        const size_t element = at * static_cast<size_t>(task.head_dim_v()) + static_cast<size_t>(c);
        error = std::max(error, std::fabs(plain[element] - answer.o[element]));
        largest = std::max(largest, std::fabs(answer.o[element]));
      }
    }
    const double times = task.softcap > 0 && task.dtype() != DType::kF32 ? 3 : 2;
    expected.o_bound.push_back(task.dtype() == DType::kF32
                                   ? std::max(times * error, 1e-5 * largest)
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
        const double size = std::max({1.0, std::fabs(answer.max_score[at]), std::fabs(want_lse)});
        judge(std::fabs(lse - want_lse), expected.lse_bound * size, lse, want_lse, "lse", h, i, 0);
      }
    }
  }
  if (wrong == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << wrong << " values out of bounds; worst: " << first;
}

}  // namespace attend::testing
