#include "cli/workload.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/flags.h"
#include "kernels/reference/number_formats.h"

namespace attend::cli {
namespace {

// Beyond the largest tensor, so that requests begin at many places.
constexpr int64_t kSpareElements = int64_t{4} << 20;
// Tensors begin at multiples of this, like allocated ones.
constexpr int64_t kAlignElements = 32;
constexpr int64_t kMaxBytes = int64_t{4} << 30;  // of one buffer

// Spreads seed and index over 64 bits (the finaliser of SplitMix64, by Vigna).
uint64_t Mix(uint64_t seed, uint64_t index) {
  uint64_t z = seed + (index + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Elements drawn from a table of normal values: as good as normal ones here, and made in a fraction
// of the time.
std::vector<std::byte> NormalData(DType dtype, int64_t elements, uint64_t seed) {
  constexpr int64_t kTable = 1 << 16;
  const auto size = static_cast<size_t>(ByteSize(dtype));
  std::mt19937_64 generator(seed);
  std::normal_distribution<double> normal;
  std::vector<std::byte> table(static_cast<size_t>(kTable) * size);
  for (int64_t i = 0; i < kTable; ++i) {
    reference::StoreElement(table.data(), dtype, i, normal(generator));
  }
  std::vector<std::byte> data(static_cast<size_t>(elements) * size);
  uint64_t picks = 0;  // four of 16 bits
  for (int64_t i = 0; i < elements; ++i) {
    picks = i % 4 == 0 ? generator() : picks >> 16;
    const size_t pick = (picks & 0xffff) * size;
    if (size == 4) {
      std::memcpy(data.data() + static_cast<size_t>(i) * 4, table.data() + pick, 4);
    } else {
      std::memcpy(data.data() + static_cast<size_t>(i) * 2, table.data() + pick, 2);
    }
  }
  return data;
}

client::DataType ClientType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return client::DataType::kFp32;
    case DType::kF16:
      return client::DataType::kFp16;
    case DType::kBF16:
      return client::DataType::kBf16;
  }
  return client::DataType::kFp32;
}

}  // namespace

Choice Choice::Of(std::vector<int64_t> values) {
  Choice choice;
  choice.values_ = std::move(values);
  return choice;
}

int64_t Choice::min() const { return *std::min_element(values_.begin(), values_.end()); }
int64_t Choice::max() const { return *std::max_element(values_.begin(), values_.end()); }

int64_t Choice::Draw(std::mt19937_64& generator) const {
  if (!is_range_) {
    return values_[std::uniform_int_distribution<size_t>(0, values_.size() - 1)(generator)];
  }
  const double low = std::log2(static_cast<double>(values_[0]));
  const double high = std::log2(static_cast<double>(values_[1]) + 1);
  const double drawn = std::exp2(std::uniform_real_distribution<double>(low, high)(generator));
  return std::clamp(static_cast<int64_t>(drawn), values_[0], values_[1]);
}

bool ParseValue(std::string_view text, Choice* choice) {
  std::vector<int64_t> values;
  const size_t colon = text.find(':');
  bool good = false;
  if (colon != std::string_view::npos) {
    values.resize(2);
    good = ParseValue(text.substr(0, colon), &values[0]) &&
           ParseValue(text.substr(colon + 1), &values[1]) && values[0] <= values[1];
  } else {
    good = ParseValue(text, &values);
  }
  if (!good || *std::min_element(values.begin(), values.end()) < 1) return false;
  choice->values_ = std::move(values);
  choice->is_range_ = colon != std::string_view::npos;
  return true;
}

std::string FormatValue(const Choice& choice) {
  return choice.is_range_ ? absl::StrCat(choice.values_[0], ":", choice.values_[1])
                          : FormatValue(choice.values_);
}

absl::StatusOr<std::unique_ptr<Workload>> Workload::Make(const WorkloadOptions& options,
                                                         uint64_t seed) {
  std::unique_ptr<Workload> workload(new Workload(options, seed));
  for (const std::string& name : options.dtypes) {
    const DType all[] = {DType::kF32, DType::kF16, DType::kBF16};
    const auto* found = std::find_if(std::begin(all), std::end(all),
                                     [&](DType type) { return attend::Name(type) == name; });
    if (found == std::end(all)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--dtypes: \"", name, "\" is not fp32, fp16 or bf16"));
    }
    workload->dtypes_.push_back(*found);
  }
  if (options.head_dim.max() > kMaxHeadDim) {
    return absl::InvalidArgumentError(
        absl::StrCat("--head-dims: ", options.head_dim.max(), " is over ", kMaxHeadDim));
  }
  if (options.group.max() > options.heads.max()) {
    return absl::InvalidArgumentError("--group: is over the number of heads");
  }
  if (!(options.causal_share >= 0 && options.causal_share <= 1)) {
    return absl::InvalidArgumentError("--causal: is a share from 0 to 1");
  }
  const int64_t rows = std::max(options.rows.max(), options.kv_rows.value_or(options.rows).max());
  const std::optional<int64_t> plane = CheckedMultiply(rows, options.heads.max());
  const std::optional<int64_t> largest =
      plane ? CheckedMultiply(*plane, options.head_dim.max()) : std::nullopt;
  if (!largest || *largest > kMaxBytes / 4 - kSpareElements) {
    return absl::InvalidArgumentError("the largest tensor is over 4 GiB");
  }
  for (const DType dtype : workload->dtypes_) {
    if (workload->data_.contains(dtype)) continue;
    workload->data_[dtype] =
        NormalData(dtype, *largest + kSpareElements, Mix(seed, static_cast<uint64_t>(dtype) << 32));
    workload->max_bytes_in_ = std::max(workload->max_bytes_in_, 3 * *largest * ByteSize(dtype));
  }
  return workload;
}

RequestSpec Workload::Request(uint64_t index) const {
  std::mt19937_64 generator(Mix(seed_, index));
  RequestSpec spec;
  spec.dtype = dtypes_[std::uniform_int_distribution<size_t>(0, dtypes_.size() - 1)(generator)];
  spec.rows = options_.rows.Draw(generator);
  spec.kv_rows = options_.kv_rows ? options_.kv_rows->Draw(generator) : spec.rows;
  const int64_t group = options_.group.Draw(generator);
  spec.kv_heads = std::max<int64_t>(1, options_.heads.Draw(generator) / group);
  spec.heads = spec.kv_heads * group;
  spec.head_dim = options_.head_dim.Draw(generator);
  spec.causal = std::uniform_real_distribution<double>(0, 1)(generator) < options_.causal_share;
  spec.lse = options_.lse;
  const std::vector<std::byte>& data = data_.at(spec.dtype);
  const int64_t elements = static_cast<int64_t>(data.size()) / ByteSize(spec.dtype);
  const auto cut = [&](int64_t bytes) {
    const int64_t places = (elements - bytes / ByteSize(spec.dtype)) / kAlignElements;
    const int64_t place = std::uniform_int_distribution<int64_t>(0, places)(generator);
    return data.data() + place * kAlignElements * ByteSize(spec.dtype);
  };
  spec.q = cut(spec.q_bytes());
  spec.k = cut(spec.kv_bytes());
  spec.v = cut(spec.kv_bytes());
  return spec;
}

client::AttendInputs InputsOf(const RequestSpec& spec) {
  const client::DataType type = ClientType(spec.dtype);
  const client::Shape q_shape = {spec.rows, spec.heads, spec.head_dim};
  const client::Shape kv_shape = {spec.kv_rows, spec.kv_heads, spec.head_dim};
  const size_t kv_bytes = static_cast<size_t>(spec.kv_bytes());
  return {{type, q_shape, spec.q, static_cast<size_t>(spec.q_bytes())},
          {type, kv_shape, spec.k, kv_bytes},
          {type, kv_shape, spec.v, kv_bytes}};
}

client::AttendOptions OptionsOf(const RequestSpec& spec) {
  client::AttendOptions options;
  options.causal = spec.causal;
  options.return_lse = spec.lse;
  return options;
}

AttentionTask TaskOf(const RequestSpec& spec) {
  AttentionTask task;
  // The oracle reads inputs alone; views have no const form.
  const auto view = [&spec](const void* data, int64_t rows, int64_t heads) {
    return TensorView::Contiguous(const_cast<void*>(data), spec.dtype, MemoryKind::kHost, rows,
                                  heads, spec.head_dim);
  };
  task.q = view(spec.q, spec.rows, spec.heads);
  task.k = view(spec.k, spec.kv_rows, spec.kv_heads);
  task.v = view(spec.v, spec.kv_rows, spec.kv_heads);
  task.o = view(nullptr, spec.rows, spec.heads);
  task.seqlen_q = spec.rows;
  task.seqlen_k = spec.kv_rows;
  task.softmax_scale = 1.0f / std::sqrt(static_cast<float>(spec.head_dim));
  task.mask.causal = spec.causal;
  return task;
}

}  // namespace attend::cli
