// From a tile's sums to its outputs.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "kernels/cpu/tile.h"
#include "kernels/cpu/tile_rows.h"

namespace attend::cpu {
namespace {

constexpr float kLog2e = 1.44269504f;
constexpr double kLn2 = 0.693147180559945309;
constexpr float kNothing = -std::numeric_limits<float>::infinity();

// What a row's sums must be multiplied by, and its log-sum-exp. A row is empty when its sum is 0;
// the maximum alone would not tell it from a row that saw a NaN.
struct RowResult {
  bool empty;
  float factor;
  double lse;  // only when wanted
};

RowResult Resolve(float maximum, float sum, const float* sink, bool wants_lse) {
  if (sum == 0) return {true, 0.0f, sink != nullptr ? double{*sink} : double{kNothing}};
  float factor = 1.0f / sum;
  double highest = maximum;
  double total = sum;
  if (sink != nullptr) {
    const float sink_log2 = *sink * kLog2e;
    highest = std::max(maximum, sink_log2);
    const double weight = std::exp2(maximum - highest);
    total = sum * weight + std::exp2(sink_log2 - highest);
    factor = static_cast<float>(weight / total);
  }
  return {false, factor, wants_lse ? (highest + std::log2(total)) * kLn2 : 0.0};
}

}  // namespace

void FinishStrip(const KernelTable& table, const AttentionTask& task, const TaskPlan& plan,
                 const Tile& tile, int strip, const TileState& state) {
  const TileRows rows(task, plan, tile.head);
  const Strips strips = StripsOf(table, tile.rows());
  const int first = strips.begin(strip);
  float factors[kMaxStripRows];
  bool empty[kMaxStripRows];
  void* out[kMaxStripRows];
  FinishArgs args;
  args.rows = strips.begin(strip + 1) - first;
  for (int r = 0; r < args.rows; ++r) {
    const int64_t row = tile.row_begin + first + r;
    const int64_t head = rows.head(row);
    const int64_t query = rows.query(row);
    const float* sink = task.sinks.absent() ? nullptr : task.sinks.data + head;
    const RowResult result =
        Resolve(state.maximum[first + r], state.sum[first + r], sink, !task.lse.absent());
    factors[r] = result.factor;
    empty[r] = result.empty;
    if (!task.lse.absent()) {
      task.lse.data[head * task.lse.head_stride + query] = static_cast<float>(result.lse);
    }
    out[r] = static_cast<std::byte*>(task.o.data) +
             (query * task.o.row_stride + head * task.o.head_stride) * ByteSize(task.o.dtype);
  }
  args.o = state.o + first * PaddedColumns(table, task.head_dim_v());
  args.columns = static_cast<int>(task.head_dim_v());
  args.factors = factors;
  args.empty = empty;
  args.out = out;
  table.dtypes[static_cast<int>(task.dtype())].finish(args);
}

void FinishTile(const KernelTable& table, const AttentionTask& task, const TaskPlan& plan,
                const Tile& tile, const TileState& state) {
  const int strips = StripsOf(table, tile.rows()).count;
  for (int strip = 0; strip < strips; ++strip) {
    FinishStrip(table, task, plan, tile, strip, state);
  }
}

void ClearPadding(const AttentionTask& task) {
  const int64_t element = ByteSize(task.o.dtype);
  for (int64_t row = task.seqlen_q; row < task.padded_q(); ++row) {
    for (int64_t head = 0; head < task.heads_q(); ++head) {
      std::memset(static_cast<std::byte*>(task.o.data) +
                      (row * task.o.row_stride + head * task.o.head_stride) * element,
                  0, static_cast<size_t>(task.head_dim_v() * element));
      if (!task.lse.absent()) task.lse.data[head * task.lse.head_stride + row] = kNothing;
    }
  }
}

}  // namespace attend::cpu
