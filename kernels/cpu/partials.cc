#include "kernels/cpu/partials.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <new>
#include <optional>

namespace attend::cpu {
namespace {

constexpr int64_t kRowAlignment = 2 * kCacheLine / static_cast<int64_t>(sizeof(float));

// out[i] += factor * in[i], or = for the first chunk.
void AddScaled(const float* in, float factor, int64_t count, bool first, float* out) {
  if (first) {
    for (int64_t i = 0; i < count; ++i) out[i] = factor * in[i];
  } else {
    for (int64_t i = 0; i < count; ++i) out[i] += factor * in[i];
  }
}

}  // namespace

bool Partials::Reserve(const KernelTable& table, absl::Span<const AttentionTask> tasks,
                       const BatchPlan& plan) {
  places_.resize(tasks.size());
  int64_t floats = 0;
  int64_t counters = 0;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const TaskPlan& task = plan.tasks[i];
    if (task.chunks <= 1 || task.items() == 0) continue;
    Place& place = places_[i];
    place.first_float = floats;
    place.first_counter = counters;
    place.columns = PaddedColumns(table, tasks[i].head_dim_v());
    const int64_t rows = (task.rows + task.row_tiles - 1) / task.row_tiles;
    place.rows = (rows + kRowAlignment - 1) / kRowAlignment * kRowAlignment;
    // At most kEnoughItems tiles are ever chunked, so only the number of chunks could be large.
    const std::optional<int64_t> more =
        CheckedMultiply(task.items(), place.rows * (place.columns + 2));
    const std::optional<int64_t> sum = more ? CheckedAdd(floats, *more) : std::nullopt;
    if (!sum) return false;
    floats = *sum;
    counters += task.heads * task.row_tiles;
  }
  if (counters > counters_) {
    counters_ = 0;
    done_.reset(new (std::nothrow) std::atomic<int32_t>[static_cast<size_t>(counters)]);
    if (done_ == nullptr) return false;
    counters_ = counters;
  }
  for (int64_t i = 0; i < counters; ++i)
    done_[static_cast<size_t>(i)].store(0, std::memory_order_relaxed);
  return buffer_.Reserve(floats);
}

TileState Partials::At(const TaskPlan& plan, int64_t index, int64_t tile, int64_t chunk) const {
  const Place& place = places_[static_cast<size_t>(index)];
  float* data = buffer_.data() + place.first_float +
                (tile * plan.chunks + chunk) * place.rows * (place.columns + 2);
  return {data, data + place.rows, data + 2 * place.rows};
}

bool Partials::Done(const TaskPlan& plan, int64_t index, int64_t tile) {
  const Place& place = places_[static_cast<size_t>(index)];
  // Acquire and release: the last one sees what all the others wrote.
  const int32_t before = done_[static_cast<size_t>(place.first_counter + tile)].fetch_add(
      1, std::memory_order_acq_rel);
  return before + 1 == plan.chunks;
}

void Partials::Merge(const KernelTable& table, const TaskPlan& plan, int64_t index, int64_t tile,
                     int rows, const TileState& out) const {
  const int64_t columns = places_[static_cast<size_t>(index)].columns;
  for (int r = 0; r < rows; ++r) {
    float highest = -std::numeric_limits<float>::infinity();
    for (int64_t chunk = 0; chunk < plan.chunks; ++chunk) {
      const float maximum = At(plan, index, tile, chunk).maximum[r];
      highest = maximum > highest ? maximum : highest;
    }
    out.maximum[r] = highest;
    out.sum[r] = 0;
  }
  const Strips strips = StripsOf(table, rows);
  for (int strip = 0; strip < strips.count; ++strip) {
    const int begin = strips.begin(strip);
    const int count = strips.begin(strip + 1) - begin;
    bool started[kMaxStripRows] = {};
    for (int64_t chunk = 0; chunk < plan.chunks; ++chunk) {
      const TileState part = At(plan, index, tile, chunk);
      for (int r = 0; r < count; ++r) {
        const int row = begin + r;
        // A row without keys in this chunk has no sums there, not even zeros.
        if (part.sum[row] == 0) continue;
        const float origin =
            out.maximum[row] == -std::numeric_limits<float>::infinity() ? 0.0f : out.maximum[row];
        const float factor = std::exp2(part.maximum[row] - origin);
        out.sum[row] += factor * part.sum[row];
        for (int64_t panel = 0; panel < columns / table.panel; ++panel) {
          const int64_t at = begin * columns + (panel * count + r) * table.panel;
          AddScaled(part.o + at, factor, table.panel, !started[r], out.o + at);
        }
        started[r] = true;
      }
    }
  }
}

}  // namespace attend::cpu
