#include "kernels/reference/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/reference/number_formats.h"

namespace attend::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kFloatMax = std::numeric_limits<float>::max();

// One head of one tensor, converted: [rows, columns], contiguous.
struct Matrix {
  int64_t columns = 0;
  std::vector<double> values;
  std::vector<uint8_t> finite;  // [rows]

  const double* row(int64_t i) const { return values.data() + i * columns; }
};

Matrix ConvertHead(const TensorView& view, int64_t head, int64_t rows) {
  Matrix matrix;
  matrix.columns = view.columns;
  matrix.values.resize(static_cast<size_t>(rows * view.columns));
  matrix.finite.assign(static_cast<size_t>(rows), 1);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t c = 0; c < view.columns; ++c) {
      const double value =
          LoadElement(view.data, view.dtype, i * view.row_stride + head * view.head_stride + c);
      matrix.values[static_cast<size_t>(i * view.columns + c)] = value;
      if (!std::isfinite(value)) matrix.finite[static_cast<size_t>(i)] = 0;
    }
  }
  return matrix;
}

// Four partial sums: as plain as one, and four times as fast.
double Dot(const double* a, const double* b, int64_t n) {
  double sums[4] = {0, 0, 0, 0};
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) {
    for (int64_t lane = 0; lane < 4; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < n; ++i) sums[0] += a[i] * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

double LoadBias(const AttentionTask& task, int64_t head, int64_t row, int64_t key) {
  return LoadElement(task.bias.data, task.bias.dtype,
                     head * task.bias.head_stride + row * task.bias.row_stride + key);
}

// The contract's score of a visible key, from its product with the query.
double Score(const AttentionTask& task, int64_t head, int64_t row, int64_t key, double product) {
  double score = static_cast<double>(task.softmax_scale) * product;
  if (task.softcap > 0) {
    const double cap = task.softcap;
    score = cap * std::tanh(score / cap);
  }
  if (!task.bias.absent()) score += LoadBias(task, head, row, key);
  if (!task.alibi_slopes.absent()) {
    const int64_t distance = row + task.seqlen_k - task.seqlen_q - key;
    score -= static_cast<double>(task.alibi_slopes.data[head]) *
             std::fabs(static_cast<double>(distance));
  }
  return score;
}

// Whether query `row` of `head` sees the key: the mask and the bias agree.
bool Visible(const AttentionTask& task, int64_t head, int64_t row, int64_t key) {
  if (!Sees(task.mask, row, key, task.seqlen_q, task.seqlen_k)) return false;
  return task.bias.absent() || LoadBias(task, head, row, key) != -kInfinity;
}

struct Row {
  double lse = -kInfinity;
  double max_score = -kInfinity;
  bool tainted = false;
};

// One query row of one head. `o` receives head_dim_v values.
Row ComputeRow(const AttentionTask& task, int64_t head, int64_t row, const Matrix& k,
               const Matrix& v, std::vector<double>& query, std::vector<double>& scores,
               std::vector<int64_t>& keys, double* o) {
  std::fill(o, o + v.columns, 0.0);
  Row result;
  if (row >= task.seqlen_q) return result;

  bool query_finite = true;
  for (int64_t c = 0; c < k.columns; ++c) {
    query[static_cast<size_t>(c)] = LoadElement(
        task.q.data, task.q.dtype, row * task.q.row_stride + head * task.q.head_stride + c);
    query_finite = query_finite && std::isfinite(query[static_cast<size_t>(c)]);
  }

  scores.clear();
  keys.clear();
  for (int64_t j = 0; j < task.seqlen_k; ++j) {
    if (!Visible(task, head, row, j)) continue;
    const double product = Dot(query.data(), k.row(j), k.columns);
    const double score = Score(task, head, row, j, product);
    keys.push_back(j);
    scores.push_back(score);
    const size_t at = static_cast<size_t>(j);
    result.tainted = result.tainted || !query_finite || k.finite[at] == 0 || v.finite[at] == 0 ||
                     !(std::fabs(product) <= kFloatMax) || !(std::fabs(score) <= kFloatMax);
  }

  double maximum = -kInfinity;
  for (const double score : scores) {
    // Not std::max: a NaN must win.
    if (!(score <= maximum)) maximum = score;
    if (std::isnan(maximum)) break;
  }
  result.max_score = maximum;

  const double sink = task.sinks.absent() ? -kInfinity : task.sinks.data[head];
  if (maximum == -kInfinity) {
    result.lse = sink;
    return result;
  }
  const double base = std::isnan(sink) || sink > maximum ? sink : maximum;
  double sum = std::exp(sink - base);
  for (double& score : scores) {
    score = std::exp(score - base);
    sum += score;
  }
  for (size_t n = 0; n < keys.size(); ++n) {
    const double* values = v.row(keys[n]);
    for (int64_t c = 0; c < v.columns; ++c) o[c] += scores[n] * values[c];
  }
  for (int64_t c = 0; c < v.columns; ++c) o[c] /= sum;
  result.lse = base + std::log(sum);
  return result;
}

}  // namespace

bool Sees(const MaskSpec& mask, int64_t row, int64_t key, int64_t seqlen_q, int64_t seqlen_k) {
  const int64_t ahead = key - (row + seqlen_k - seqlen_q);  // of the query's own position
  if (mask.causal && ahead > 0) return false;
  if (mask.window_left.has_value() && -ahead > *mask.window_left) return false;
  if (mask.window_right.has_value() && ahead > *mask.window_right) return false;
  return true;
}

Answer ComputeRows(const AttentionTask& task, absl::Span<const int64_t> heads,
                   absl::Span<const int64_t> rows) {
  Answer answer;
  answer.heads.assign(heads.begin(), heads.end());
  answer.rows.assign(rows.begin(), rows.end());
  const size_t count = heads.size() * rows.size();
  answer.o.resize(count * static_cast<size_t>(task.head_dim_v()));
  answer.lse.resize(count);
  answer.max_score.resize(count);
  answer.tainted.resize(count);

  std::vector<double> query(static_cast<size_t>(task.head_dim()));
  std::vector<double> scores;
  std::vector<int64_t> keys;
  const int64_t group = task.heads_q() / task.heads_k();
  int64_t converted = -1;  // kv head that `k` and `v` hold
  Matrix k, v;
  size_t at = 0;
  for (const int64_t head : heads) {
    if (head / group != converted) {
      converted = head / group;
      k = ConvertHead(task.k, converted, task.seqlen_k);
      v = ConvertHead(task.v, converted, task.seqlen_k);
    }
    for (const int64_t row : rows) {
      double* o = answer.o.data() + at * static_cast<size_t>(task.head_dim_v());
      const Row result = ComputeRow(task, head, row, k, v, query, scores, keys, o);
      answer.lse[at] = result.lse;
      answer.max_score[at] = result.max_score;
      answer.tainted[at] = result.tainted ? 1 : 0;
      ++at;
    }
  }
  return answer;
}

Answer ComputeAll(const AttentionTask& task) {
  std::vector<int64_t> heads(static_cast<size_t>(task.heads_q()));
  std::vector<int64_t> rows(static_cast<size_t>(task.padded_q()));
  std::iota(heads.begin(), heads.end(), 0);
  std::iota(rows.begin(), rows.end(), 0);
  return ComputeRows(task, heads, rows);
}

void Run(const AttentionTask& task) {
  const Answer answer = ComputeAll(task);
  size_t at = 0;
  for (const int64_t head : answer.heads) {
    for (const int64_t row : answer.rows) {
      for (int64_t c = 0; c < task.head_dim_v(); ++c) {
        StoreElement(
            task.o.data, task.o.dtype, row * task.o.row_stride + head * task.o.head_stride + c,
            answer.o[at * static_cast<size_t>(task.head_dim_v()) + static_cast<size_t>(c)]);
      }
      if (!task.lse.absent()) {
        task.lse.data[head * task.lse.head_stride + row] = static_cast<float>(answer.lse[at]);
      }
      ++at;
    }
  }
}

}  // namespace attend::reference
