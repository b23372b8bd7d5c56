#include "tests/testing/problem.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "kernels/reference/number_formats.h"
#include "kernels/reference/reference.h"

namespace attend::testing {
namespace {

using reference::StoreElement;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kLargeFactor = 16;
constexpr double kHugeFactor = 5e17;

int64_t Offset(const TensorView& view, int64_t row, int64_t head, int64_t column) {
  return row * view.row_stride + head * view.head_stride + column;
}

double Draw(Values values, bool query, DType dtype, Random& random) {
  const double normal = random.Normal();
  switch (values) {
    case Values::kNormal:
    case Values::kSubnormal:
      return normal;
    case Values::kLarge:
      return kLargeFactor * normal;
    case Values::kHuge:
      return dtype == DType::kF16 ? kLargeFactor * normal : kHugeFactor * normal;
    case Values::kPositive:
      return kLargeFactor * std::fabs(normal);
    case Values::kNegative:
      return (query ? kLargeFactor : -kLargeFactor) * std::fabs(normal);
    case Values::kEqual:
      return query ? 0 : normal;
  }
  return normal;
}

double DrawValue(Values values, DType dtype, Random& random) {
  if (values != Values::kSubnormal || dtype == DType::kF32) return random.Normal();
  const double sign = random.Chance(0.5) ? 1 : -1;
  return dtype == DType::kF16
             ? sign * std::ldexp(static_cast<double>(random.Between(1, 1023)), -24)
             : sign * std::ldexp(static_cast<double>(random.Between(1, 127)), -133);
}

template <typename DrawFn>
void Fill(const TensorView& view, int64_t rows, DrawFn draw) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t h = 0; h < view.heads; ++h) {
      for (int64_t c = 0; c < view.columns; ++c) {
        StoreElement(view.data, view.dtype, Offset(view, i, h, c), draw());
      }
    }
  }
}

void FillRow(const TensorView& view, int64_t row, int64_t head, double value) {
  for (int64_t c = 0; c < view.columns; ++c) {
    StoreElement(view.data, view.dtype, Offset(view, row, head, c), value);
  }
}

double BiasAt(const AttentionTask& task, int64_t head, int64_t row, int64_t key) {
  return task.bias.absent() ? 0
                            : reference::LoadElement(
                                  task.bias.data, task.bias.dtype,
                                  head * task.bias.head_stride + row * task.bias.row_stride + key);
}

// NaN and infinity where no query of the kv head's group can see them.
void HideTraps(AttentionTask& task) {
  const int64_t group = task.heads_q() / task.heads_k();
  for (int64_t h = 0; h < task.heads_k(); ++h) {
    for (int64_t j = 0; j < task.seqlen_k; ++j) {
      bool seen = false;
      for (int64_t i = 0; i < task.seqlen_q && !seen; ++i) {
        if (!reference::Sees(task.mask, i, j, task.seqlen_q, task.seqlen_k)) continue;
        for (int64_t g = h * group; g < (h + 1) * group && !seen; ++g) {
          seen = BiasAt(task, g, i, j) != -kInfinity;
        }
      }
      if (seen) continue;
      FillRow(task.k, j, h, j % 2 == 0 ? kNaN : kInfinity);
      FillRow(task.v, j, h, j % 3 == 0 ? -kInfinity : kNaN);
    }
  }
}

void SetTraps(Trap trap, AttentionTask& task, Random& random) {
  if (trap == Trap::kNone) return;
  if (trap == Trap::kHidden) return HideTraps(task);
  const bool infinity = trap == Trap::kInfinityInKey || trap == Trap::kInfinityInValue ||
                        trap == Trap::kInfinityInQuery;
  const double value = infinity ? kInfinity : kNaN;
  const bool in_query = trap == Trap::kInQuery || trap == Trap::kInfinityInQuery;
  const bool in_key = trap == Trap::kInKey || trap == Trap::kInfinityInKey;
  const TensorView& view = in_query ? task.q : in_key ? task.k : task.v;
  const int64_t rows = in_query ? task.seqlen_q : task.seqlen_k;
  for (int64_t h = 0; h < view.heads && rows > 0; ++h) {
    const int64_t row = random.Between(0, rows - 1);
    const int64_t column = random.Between(0, view.columns - 1);
    StoreElement(view.data, view.dtype, Offset(view, row, h, column), value);
  }
}

uint64_t SumBytes(const GuardedBuffer& buffer, uint64_t sum) {
  const auto* bytes = static_cast<const uint8_t*>(buffer.data());
  for (size_t i = 0; i < buffer.size(); ++i) sum = (sum ^ bytes[i]) * 0x100000001b3u;  // FNV-1a
  return sum;
}

}  // namespace

Problem::Problem(const Case& test_case, uint64_t seed) {
  Random random(MixSeed(seed, test_case.name));
  if (test_case.ragged) {
    BuildRagged(test_case, random);
  } else {
    for (const TaskSpec& spec : test_case.tasks) BuildSeparate(spec, random);
  }
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (std::find(outputs_.begin(), outputs_.end(), i) == outputs_.end()) {
      input_sum_ = SumBytes(buffers_[i], input_sum_);
    }
  }
}

GuardedBuffer& Problem::Allocate(int64_t bytes, Random& random) {
  return buffers_.emplace_back(static_cast<size_t>(bytes), random.Chance(0.5)
                                                               ? GuardedBuffer::Placement::kAligned
                                                               : GuardedBuffer::Placement::kFlush);
}

TensorView Problem::MakeTensor(const TaskSpec& spec, int64_t rows, int64_t heads, int64_t columns,
                               Random& random) {
  TensorView view =
      TensorView::Contiguous(nullptr, spec.dtype, MemoryKind::kHost, rows, heads, columns);
  if (spec.layout == Layout::kRowGap) view.row_stride += random.Between(1, 9);
  if (spec.layout == Layout::kHeadMajor) {
    view.row_stride = columns;
    view.head_stride = std::max<int64_t>(rows, 1) * columns;
  }
  const int64_t elements =
      rows == 0 ? 0 : (rows - 1) * view.row_stride + (heads - 1) * view.head_stride + columns;
  view.data = Allocate(elements * ByteSize(spec.dtype), random).data();
  return view;
}

void Problem::FillInputs(const TaskSpec& spec, AttentionTask& task, Random& random) {
  task.seqlen_q = spec.seqlen_q;
  task.seqlen_k = spec.seqlen_k;
  task.softmax_scale = spec.scale.value_or(1 / std::sqrt(static_cast<float>(spec.head_dim)));
  task.softcap = spec.softcap;
  task.mask = spec.mask;
  Fill(task.q, spec.seqlen_q, [&] { return Draw(spec.values, true, spec.dtype, random); });
  Fill(task.k, spec.seqlen_k, [&] { return Draw(spec.values, false, spec.dtype, random); });
  Fill(task.v, spec.seqlen_k, [&] { return DrawValue(spec.values, spec.dtype, random); });
  AddVectors(spec, task, random);
  AddBias(spec, task, random);
  SetTraps(spec.trap, task, random);
}

void Problem::BuildSeparate(const TaskSpec& spec, Random& random) {
  const int64_t rows = spec.seqlen_q + spec.padding_q;
  const int64_t keys = spec.seqlen_k + spec.padding_k;
  const int64_t columns_v = spec.head_dim_v == 0 ? spec.head_dim : spec.head_dim_v;
  AttentionTask task;
  task.q = MakeTensor(spec, rows, spec.heads_q, spec.head_dim, random);
  task.k = MakeTensor(spec, keys, spec.heads_k, spec.head_dim, random);
  task.v = MakeTensor(spec, keys, spec.heads_k, columns_v, random);
  task.o = MakeTensor(spec, rows, spec.heads_q, columns_v, random);
  outputs_.push_back(buffers_.size() - 1);
  if (spec.lse) {
    task.lse.head_stride = rows + (spec.layout == Layout::kRowGap ? 3 : 0);
    const int64_t floats = (spec.heads_q - 1) * task.lse.head_stride + rows;
    task.lse.data = static_cast<float*>(Allocate(floats * 4, random).data());
    outputs_.push_back(buffers_.size() - 1);
  }
  FillInputs(spec, task, random);
  tasks_.push_back(task);
}

void Problem::BuildRagged(const Case& test_case, Random& random) {
  TaskSpec whole = test_case.tasks.front();
  int64_t total_q = 0, total_k = 0;
  for (const TaskSpec& spec : test_case.tasks) {
    total_q += spec.seqlen_q;
    total_k += spec.seqlen_k;
  }
  const int64_t columns_v = whole.head_dim_v == 0 ? whole.head_dim : whole.head_dim_v;
  const TensorView q = MakeTensor(whole, total_q, whole.heads_q, whole.head_dim, random);
  const TensorView k = MakeTensor(whole, total_k, whole.heads_k, whole.head_dim, random);
  const TensorView v = MakeTensor(whole, total_k, whole.heads_k, columns_v, random);
  const TensorView o = MakeTensor(whole, total_q, whole.heads_q, columns_v, random);
  outputs_.push_back(buffers_.size() - 1);
  float* lse = nullptr;
  if (whole.lse) {
    lse = static_cast<float*>(Allocate(whole.heads_q * total_q * 4, random).data());
    outputs_.push_back(buffers_.size() - 1);
  }
  int64_t row = 0, key = 0;
  const auto part = [](TensorView view, int64_t first, int64_t rows) {
    view.data = static_cast<char*>(view.data) + first * view.row_stride * ByteSize(view.dtype);
    view.rows = rows;
    return view;
  };
  for (const TaskSpec& spec : test_case.tasks) {
    AttentionTask task;
    task.q = part(q, row, spec.seqlen_q);
    task.k = part(k, key, spec.seqlen_k);
    task.v = part(v, key, spec.seqlen_k);
    task.o = part(o, row, spec.seqlen_q);
    if (lse != nullptr) {
      task.lse.data = lse + row;
      task.lse.head_stride = total_q;
    }
    FillInputs(spec, task, random);
    tasks_.push_back(task);
    row += spec.seqlen_q;
    key += spec.seqlen_k;
  }
}

void Problem::AddVectors(const TaskSpec& spec, AttentionTask& task, Random& random) {
  if (spec.alibi) {
    auto* slopes = static_cast<float*>(Allocate(spec.heads_q * 4, random).data());
    for (int64_t h = 0; h < spec.heads_q; ++h) {
      slopes[h] = static_cast<float>(
          std::exp2(-8.0 * static_cast<double>(h + 1) / static_cast<double>(spec.heads_q)));
      if (h % 4 == 3) slopes[h] = -slopes[h] / 16;  // odd, but a slope is any number
    }
    task.alibi_slopes.data = slopes;
  }
  if (spec.sinks != Sinks::kNone) {
    auto* sinks = static_cast<float*>(Allocate(spec.heads_q * 4, random).data());
    constexpr float kExtremes[] = {-std::numeric_limits<float>::infinity(), 200, -200, 0};
    for (int64_t h = 0; h < spec.heads_q; ++h) {
      sinks[h] = spec.sinks == Sinks::kExtreme ? kExtremes[h % 4]
                                               : static_cast<float>(2 * random.Normal());
    }
    task.sinks.data = sinks;
  }
}

void Problem::AddBias(const TaskSpec& spec, AttentionTask& task, Random& random) {
  if (!spec.bias.has_value()) return;
  const BiasSpec& bias = *spec.bias;
  const int64_t heads = bias.per_head ? spec.heads_q : 1;
  const int64_t padded_rows = bias.per_row ? task.q.rows : 1;
  const int64_t real_rows = bias.per_row ? spec.seqlen_q : 1;
  const int64_t keys = task.k.rows;
  task.bias.dtype = bias.fp32 ? DType::kF32 : spec.dtype;
  task.bias.row_stride = bias.per_row ? keys : 0;
  task.bias.head_stride = bias.per_head ? padded_rows * keys : 0;
  void* data = Allocate(heads * padded_rows * keys * ByteSize(task.bias.dtype), random).data();
  task.bias.data = data;
  std::vector<uint8_t> key_masked(static_cast<size_t>(spec.seqlen_k));
  for (uint8_t& masked : key_masked) masked = random.Chance(0.4) ? 1 : 0;
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < real_rows; ++i) {
      const bool row_masked = bias.values == BiasValues::kAllMasked ||
                              (bias.values == BiasValues::kRowsMasked && random.Chance(0.4));
      for (int64_t j = 0; j < spec.seqlen_k; ++j) {
        double value = random.Normal();
        if (bias.values == BiasValues::kVeryNegative) value = value * 2 - 10000;
        const bool masked =
            row_masked || (bias.values == BiasValues::kSomeMasked && random.Chance(0.35)) ||
            (bias.values == BiasValues::kKeysMasked && key_masked[static_cast<size_t>(j)] != 0);
        StoreElement(data, task.bias.dtype, (h * padded_rows + i) * keys + j,
                     masked ? -kInfinity : value);
      }
    }
  }
}

void Problem::PoisonOutputs() {
  for (const size_t index : outputs_) buffers_[index].Poison();
}

std::string Problem::Damage() const {
  std::string damage;
  uint64_t sum = 0;
  for (size_t i = 0; i < buffers_.size(); ++i) {
    if (!buffers_[i].GuardsIntact()) absl::StrAppend(&damage, "guard of buffer ", i, " hit; ");
    if (std::find(outputs_.begin(), outputs_.end(), i) == outputs_.end()) {
      sum = SumBytes(buffers_[i], sum);
    }
  }
  if (sum != input_sum_) absl::StrAppend(&damage, "an input changed; ");

  // Outputs: whatever no task owns must still be poison.
  for (const size_t index : outputs_) {
    const GuardedBuffer& buffer = buffers_[index];
    const auto* begin = static_cast<const uint8_t*>(buffer.data());
    std::vector<uint8_t> owned(buffer.size());
    const auto own = [&](const void* at, int64_t bytes) {
      const auto* first = static_cast<const uint8_t*>(at);
      if (first < begin || first >= begin + buffer.size()) return;
      std::memset(owned.data() + (first - begin), 1, static_cast<size_t>(bytes));
    };
    for (const AttentionTask& task : tasks_) {
      const int64_t element = ByteSize(task.o.dtype);
      for (int64_t h = 0; h < task.heads_q(); ++h) {
        for (int64_t i = 0; i < task.padded_q(); ++i) {
          own(static_cast<const char*>(task.o.data) + Offset(task.o, i, h, 0) * element,
              task.o.columns * element);
          if (!task.lse.absent()) own(task.lse.data + h * task.lse.head_stride + i, 4);
        }
      }
    }
    for (size_t b = 0; b < owned.size(); ++b) {
      if (owned[b] == 0 && begin[b] != kPoisonByte) {
        absl::StrAppend(&damage, "gap of output buffer ", index, " hit at byte ", b, "; ");
        break;
      }
    }
  }
  return damage;
}

std::vector<uint8_t> Problem::OutputBytes() const {
  std::vector<uint8_t> bytes;
  for (const size_t index : outputs_) {
    const auto* data = static_cast<const uint8_t*>(buffers_[index].data());
    bytes.insert(bytes.end(), data, data + buffers_[index].size());
  }
  return bytes;
}

}  // namespace attend::testing
