#include "cli/verify.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>

#include "absl/strings/str_format.h"
#include "kernels/reference/number_formats.h"
#include "kernels/reference/reference.h"

namespace attend::cli {
namespace {

using reference::LoadElement;

constexpr int kSampledHeads = 2;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The unfused formula of one row: what an honest implementation in the dtype computes.
std::vector<double> PlainRow(const AttentionTask& task, int64_t head, int64_t row) {
  const int64_t kv_head = head / (task.heads_q() / task.heads_k());
  std::vector<float> scores(static_cast<size_t>(task.seqlen_k),
                            -std::numeric_limits<float>::infinity());
  float top = -std::numeric_limits<float>::infinity();
  const auto load = [](const TensorView& view, int64_t i, int64_t h, int64_t c) {
    return static_cast<float>(
        LoadElement(view.data, view.dtype, i * view.row_stride + h * view.head_stride + c));
  };
  for (int64_t j = 0; j < task.seqlen_k; ++j) {
    if (!reference::Sees(task.mask, row, j, task.seqlen_q, task.seqlen_k)) continue;
    float product = 0;
    for (int64_t c = 0; c < task.head_dim(); ++c) {
      product += load(task.q, row, head, c) * load(task.k, j, kv_head, c);
    }
    scores[static_cast<size_t>(j)] = product * task.softmax_scale;
    top = std::max(top, scores[static_cast<size_t>(j)]);
  }
  std::vector<double> o(static_cast<size_t>(task.head_dim_v()), 0.0);
  if (!std::isfinite(top)) return o;
  float total = 0;
  for (float& score : scores) {
    score = std::exp(score - top);
    total += score;
  }
  std::vector<float> sums(o.size(), 0.0f);
  for (int64_t j = 0; j < task.seqlen_k; ++j) {
    const auto p = static_cast<float>(
        reference::Rounded(scores[static_cast<size_t>(j)] / total, task.dtype()));
    if (p == 0) continue;
    for (size_t c = 0; c < sums.size(); ++c) {
      sums[c] += p * load(task.v, j, kv_head, static_cast<int64_t>(c));
    }
  }
  for (size_t c = 0; c < o.size(); ++c) o[c] = reference::Rounded(sums[c], task.dtype());
  return o;
}

// Error as a share of the bound; a bound of 0 asks for equality.
double Share(double got, double want, double bound) {
  if (got == want) return 0;
  const double error = std::abs(got - want);
  return std::isfinite(error) && bound > 0 ? error / bound : kInfinity;
}

void Note(Verdict* verdict, const Sample& sample, const char* what, int64_t head, int64_t row,
          double got, double want, double share) {
  if (share <= verdict->worst) return;
  verdict->worst = share;
  if (share <= 1) return;
  verdict->right = false;
  verdict->what = absl::StrFormat(
      "request %s (%s, %d x %d rows, %d heads, D %d%s): %s of head %d, row %d is %.9g, not %.9g",
      sample.request_id, std::string(Name(sample.spec.dtype)), sample.spec.rows,
      sample.spec.kv_rows, sample.spec.heads, sample.spec.head_dim,
      sample.spec.causal ? ", causal" : "", what, head, row, got, want);
}

}  // namespace

Sample TakeSample(const RequestSpec& spec, const client::AttendResult& result, uint64_t index,
                  int64_t rows) {
  std::mt19937_64 generator(index * 0x9e3779b97f4a7c15u + 7);
  const auto draw = [&generator](int64_t count) {
    return std::uniform_int_distribution<int64_t>(0, count - 1)(generator);
  };
  std::set<int64_t> heads;
  while (static_cast<int64_t>(heads.size()) < std::min<int64_t>(kSampledHeads, spec.heads)) {
    heads.insert(draw(spec.heads));
  }
  std::set<int64_t> chosen = {spec.rows - 1};
  if (rows > 1) chosen.insert(0);
  while (static_cast<int64_t>(chosen.size()) < std::min(rows, spec.rows)) {
    chosen.insert(draw(spec.rows));
  }

  Sample sample{
      spec, result.request_id, {heads.begin(), heads.end()}, {chosen.begin(), chosen.end()}, {},
      {}};
  const size_t row_bytes = static_cast<size_t>(spec.head_dim * ByteSize(spec.dtype));
  const std::span<const std::byte> o = result.o.bytes();
  const std::span<const float> lse = result.lse.values<float>();
  for (const int64_t head : sample.heads) {
    for (const int64_t row : sample.rows) {
      const auto at = static_cast<size_t>(row * spec.heads + head) * row_bytes;
      if (at + row_bytes <= o.size()) {
        sample.o.insert(sample.o.end(), o.begin() + static_cast<std::ptrdiff_t>(at),
                        o.begin() + static_cast<std::ptrdiff_t>(at + row_bytes));
      }
      const auto lse_at = static_cast<size_t>(head * spec.rows + row);
      if (spec.lse && lse_at < lse.size()) sample.lse.push_back(lse[lse_at]);
    }
  }
  return sample;
}

Verdict Check(const Sample& sample) {
  Verdict verdict;
  const AttentionTask task = TaskOf(sample.spec);
  const int64_t dim = task.head_dim_v();
  const size_t picked = sample.heads.size() * sample.rows.size();
  if (sample.o.size() != picked * static_cast<size_t>(dim * ByteSize(task.dtype())) ||
      sample.lse.size() != (sample.spec.lse ? picked : 0)) {
    return {false, kInfinity,
            absl::StrFormat("request %s: the answer has another shape", sample.request_id)};
  }
  const reference::Answer answer = reference::ComputeRows(task, sample.heads, sample.rows);
  const bool fp32 = task.dtype() == DType::kF32;
  size_t at = 0;  // head and row
  for (const int64_t head : sample.heads) {
    double plain_error = 0, largest = 0;
    for (size_t i = 0; i < sample.rows.size(); ++i) {
      const std::vector<double> plain = PlainRow(task, head, sample.rows[i]);
      for (size_t c = 0; c < plain.size(); ++c) {
        const double want = answer.o[(at + i) * plain.size() + c];
        plain_error = std::max(plain_error, std::abs(plain[c] - want));
        largest = std::max(largest, std::abs(want));
      }
    }
    const double bound = fp32 ? std::max(2 * plain_error, 1e-5 * largest)
                              : 2 * plain_error + reference::RoundingStep(largest, task.dtype());
    for (const int64_t row : sample.rows) {
      for (int64_t c = 0; c < dim; ++c) {
        const int64_t element = static_cast<int64_t>(at) * dim + c;
        const double got = LoadElement(sample.o.data(), task.dtype(), element);
        const double want = answer.o[static_cast<size_t>(element)];
        Note(&verdict, sample, "o", head, row, got, want, Share(got, want, bound));
      }
      if (sample.spec.lse) {
        const double score = std::abs(answer.max_score[at]);
        const double lse_bound =
            (fp32 ? 1e-5 : 1e-4) * (std::isfinite(score) ? std::max(1.0, score) : 0.0);
        const double got = static_cast<double>(sample.lse[at]);
        Note(&verdict, sample, "lse", head, row, got, answer.lse[at],
             Share(got, answer.lse[at], lse_bound));
      }
      ++at;
    }
  }
  return verdict;
}

}  // namespace attend::cli
