#include "kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/errors.h"

namespace attend {
namespace {

using Wide = __int128;

constexpr int64_t kMax64 = std::numeric_limits<int64_t>::max();

// Sum of the integers first, first + 1, ..., last; 0 when last < first.
Wide SumOfRange(Wide first, Wide last) {
  return last < first ? 0 : (first + last) * (last - first + 1) / 2;
}

// A window with both bounds in numbers. A bound of seqlen_q + seqlen_k reaches every key from every
// row, so clipping to it changes nothing and keeps positions plus bounds inside 64 bits.
struct Bounds {
  int64_t left;
  int64_t right;
};

Bounds ClippedBounds(const MaskSpec& mask, int64_t seqlen_q, int64_t seqlen_k) {
  const int64_t reach = CheckedAdd(seqlen_q, seqlen_k).value_or(kMax64 / 2);
  Bounds bounds;
  bounds.left = std::min(mask.window_left.value_or(reach), reach);
  bounds.right = mask.causal ? 0 : std::min(mask.window_right.value_or(reach), reach);
  return bounds;
}

Wide WideVisiblePairs(const MaskSpec& mask, int64_t seqlen_q, int64_t seqlen_k) {
  if (seqlen_q <= 0 || seqlen_k <= 0) return 0;
  const Bounds bounds = ClippedBounds(mask, seqlen_q, seqlen_k);
  const Wide sk = seqlen_k;
  // Row at position p sees keys max(0, p - left) to min(sk, p + right + 1); positions run to
  // sk - 1, and those below -right see nothing.
  const Wide first = std::max<Wide>(sk - seqlen_q, -Wide{bounds.right});
  const Wide last = sk - 1;
  const Wide full_from = std::max<Wide>(first, sk - 1 - bounds.right);  // end reaches sk
  const Wide ends =
      SumOfRange(first + bounds.right + 1, full_from + bounds.right) + (last - full_from + 1) * sk;
  const Wide begins = SumOfRange(std::max<Wide>(0, first - bounds.left), last - bounds.left);
  return ends - begins;
}

// Number of elements from the first to one past the last, or nullopt past 64 bits.
std::optional<int64_t> Extent(int64_t rows, int64_t row_stride, int64_t heads, int64_t head_stride,
                              int64_t columns) {
  if (rows == 0 || heads == 0 || columns == 0) return 0;
  const std::optional<int64_t> over_rows = CheckedMultiply(rows - 1, row_stride);
  const std::optional<int64_t> over_heads = CheckedMultiply(heads - 1, head_stride);
  if (!over_rows || !over_heads) return std::nullopt;
  const std::optional<int64_t> both = CheckedAdd(*over_rows, *over_heads);
  return both ? CheckedAdd(*both, columns) : std::nullopt;
}

bool FitsBytes(std::optional<int64_t> elements, DType dtype) {
  return elements && CheckedMultiply(*elements, ByteSize(dtype)).has_value();
}

absl::Status Expect(int64_t value, int64_t wanted, const std::string& field, const char* what,
                    const char* of) {
  if (value == wanted) return absl::OkStatus();
  return InvalidField(field, absl::StrCat(what, " is ", value, ", but ", of, " is ", wanted));
}

// What can be said of one tensor alone. `field` is its name in the request.
absl::Status ValidateTensor(const std::string& field, const TensorView& view) {
  const std::string shape = field + ".shape";
  if (static_cast<int>(view.dtype) >= kDTypeCount) {
    return InvalidField(field + ".data_type",
                        absl::StrCat("unknown type ", static_cast<int>(view.dtype)));
  }
  if (view.rows < 0) return InvalidField(shape, absl::StrCat("rows is ", view.rows, ", below 0"));
  if (view.heads < 1)
    return InvalidField(shape, absl::StrCat("heads is ", view.heads, ", below 1"));
  if (view.columns < 1 || view.columns > kMaxHeadDim) {
    return InvalidField(shape, absl::StrCat("head dimension is ", view.columns,
                                            ", but must be 1 to ", kMaxHeadDim));
  }
  const std::optional<int64_t> row = CheckedMultiply(view.heads, view.columns);
  if (!row || !FitsBytes(CheckedMultiply(view.rows, *row), view.dtype)) {
    return InvalidField(shape, absl::StrCat("[", view.rows, ", ", view.heads, ", ", view.columns,
                                            "] does not fit 64 bits"));
  }
  const std::string strides = field + ".strides";
  if (view.rows > 1 && view.row_stride < view.columns) {
    return InvalidField(strides, absl::StrCat("row stride is ", view.row_stride,
                                              ", below the head dimension ", view.columns));
  }
  if (view.rows > 0 && view.heads > 1 && view.head_stride < view.columns) {
    return InvalidField(strides, absl::StrCat("head stride is ", view.head_stride,
                                              ", below the head dimension ", view.columns));
  }
  if (!FitsBytes(Extent(view.rows, view.row_stride, view.heads, view.head_stride, view.columns),
                 view.dtype)) {
    return InvalidField(strides, absl::StrCat("row stride ", view.row_stride, " and head stride ",
                                              view.head_stride, " do not fit 64 bits"));
  }
  return absl::OkStatus();
}

// Whether no two elements share an address: rows inside heads or heads inside rows. The extents
// were found to fit before.
bool Disjoint(const TensorView& view) {
  if (view.rows <= 1 || view.heads <= 1) return true;
  return view.row_stride >= (view.heads - 1) * view.head_stride + view.columns ||
         view.head_stride >= (view.rows - 1) * view.row_stride + view.columns;
}

absl::Status ValidateShapes(const AttentionTask& task) {
  for (const auto& [field, view] : {std::pair<const char*, const TensorView&>("q", task.q),
                                    {"k", task.k},
                                    {"v", task.v},
                                    {"o", task.o}}) {
    if (absl::Status status = ValidateTensor(field, view); !status.ok()) return status;
    if (view.dtype != task.q.dtype) {
      return InvalidField(absl::StrCat(field, ".data_type"),
                          absl::StrCat("is ", std::string(Name(view.dtype)), ", but q is ",
                                       std::string(Name(task.q.dtype))));
    }
  }
  const struct {
    int64_t value, wanted;
    const char *field, *what, *of;
  } agreements[] = {
      {task.k.columns, task.q.columns, "k.shape", "head dimension", "the head dimension of q"},
      {task.v.rows, task.k.rows, "v.shape", "rows", "rows of k"},
      {task.v.heads, task.k.heads, "v.shape", "heads", "heads of k"},
      {task.o.rows, task.q.rows, "o.shape", "rows", "rows of q"},
      {task.o.heads, task.q.heads, "o.shape", "heads", "heads of q"},
      {task.o.columns, task.v.columns, "o.shape", "head dimension", "the head dimension of v"},
  };
  for (const auto& a : agreements) {
    absl::Status status = Expect(a.value, a.wanted, a.field, a.what, a.of);
    if (!status.ok()) return status;
  }
  if (task.heads_q() % task.heads_k() != 0) {
    return InvalidField(
        "q.shape", absl::StrCat("heads is ", task.heads_q(), ", not a multiple of the heads of k, ",
                                task.heads_k()));
  }
  if (!Disjoint(task.o)) {
    return InvalidField("o.strides",
                        absl::StrCat("row stride ", task.o.row_stride, " and head stride ",
                                     task.o.head_stride, " make elements share an address"));
  }
  return absl::OkStatus();
}

absl::Status ValidateLengths(const AttentionTask& task) {
  const auto check = [](const char* field, int64_t length, int64_t rows) {
    if (length >= 0 && length <= rows) return absl::OkStatus();
    return InvalidField(field, absl::StrCat("length is ", length, ", but must be 0 to ", rows,
                                            ", the padded rows"));
  };
  absl::Status status = check("q_lens", task.seqlen_q, task.q.rows);
  if (status.ok()) status = check("kv_lens", task.seqlen_k, task.k.rows);
  if (!status.ok()) return status;
  // Positions and pairs of rows and keys are counted in 64 bits.
  if (!CheckedAdd(task.seqlen_q, task.seqlen_k) || !CheckedMultiply(task.seqlen_q, task.seqlen_k)) {
    return InvalidField("q.shape", absl::StrCat(task.seqlen_q, " rows times ", task.seqlen_k,
                                                " keys do not fit 64 bits"));
  }
  return absl::OkStatus();
}

absl::Status ValidateOptions(const AttentionTask& task) {
  if (!std::isfinite(task.softmax_scale)) {
    return InvalidField("softmax_scale", absl::StrCat("is ", task.softmax_scale, ", not finite"));
  }
  if (!std::isfinite(task.softcap) || task.softcap < 0) {
    return InvalidField("softcap", absl::StrCat("is ", task.softcap, ", not finite and >= 0"));
  }
  if (task.mask.window_left && *task.mask.window_left < 0) {
    return InvalidField("window.left", absl::StrCat("is ", *task.mask.window_left, ", below 0"));
  }
  if (task.mask.window_right && *task.mask.window_right < 0) {
    return InvalidField("window.right", absl::StrCat("is ", *task.mask.window_right, ", below 0"));
  }
  return absl::OkStatus();
}

absl::Status ValidateLse(const AttentionTask& task) {
  if (task.lse.absent()) return absl::OkStatus();
  if (task.heads_q() > 1 && task.lse.head_stride < task.padded_q()) {
    return InvalidField("lse.strides", absl::StrCat("head stride is ", task.lse.head_stride,
                                                    ", below the rows of q, ", task.padded_q()));
  }
  if (!FitsBytes(Extent(1, 0, task.heads_q(), task.lse.head_stride, task.padded_q()),
                 DType::kF32)) {
    return InvalidField(
        "lse.strides", absl::StrCat("head stride ", task.lse.head_stride, " does not fit 64 bits"));
  }
  return absl::OkStatus();
}

absl::Status ValidateBias(const AttentionTask& task) {
  const BiasView& bias = task.bias;
  if (bias.absent()) return absl::OkStatus();
  if (bias.dtype != DType::kF32 && bias.dtype != task.dtype()) {
    return InvalidField("bias.data_type", absl::StrCat("is ", std::string(Name(bias.dtype)),
                                                       ", but must be fp32 or that of q, ",
                                                       std::string(Name(task.dtype()))));
  }
  if (bias.head_stride < 0) {
    return InvalidField("bias.strides",
                        absl::StrCat("head stride is ", bias.head_stride, ", below 0"));
  }
  if (bias.row_stride != 0 && bias.row_stride < task.k.rows) {
    return InvalidField("bias.strides",
                        absl::StrCat("row stride is ", bias.row_stride,
                                     ", neither 0 nor at least the rows of k, ", task.k.rows));
  }
  if (!FitsBytes(
          Extent(task.padded_q(), bias.row_stride, task.heads_q(), bias.head_stride, task.k.rows),
          bias.dtype)) {
    return InvalidField("bias.strides",
                        absl::StrCat("row stride ", bias.row_stride, " and head stride ",
                                     bias.head_stride, " do not fit 64 bits"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "fp32";
    case DType::kF16:
      return "fp16";
    case DType::kBF16:
      return "bf16";
  }
  return "unknown";
}

TensorView TensorView::Contiguous(void* data, DType dtype, MemoryKind memory, int64_t rows,
                                  int64_t heads, int64_t columns) {
  TensorView view;
  view.data = data;
  view.dtype = dtype;
  view.memory = memory;
  view.rows = rows;
  view.heads = heads;
  view.columns = columns;
  // Shapes come from outside: a product past 64 bits becomes a stride that Validate refuses.
  view.row_stride = CheckedMultiply(heads, columns).value_or(kMax64);
  view.head_stride = columns;
  return view;
}

KeyRange VisibleKeys(const MaskSpec& mask, int64_t row, int64_t seqlen_q, int64_t seqlen_k) {
  const Bounds bounds = ClippedBounds(mask, seqlen_q, seqlen_k);
  const int64_t position = row + seqlen_k - seqlen_q;
  KeyRange range;
  range.begin = std::clamp<int64_t>(position - bounds.left, 0, seqlen_k);
  range.end = std::clamp<int64_t>(position + bounds.right + 1, range.begin, seqlen_k);
  return range;
}

absl::Status Validate(const AttentionTask& task) {
  for (auto* check :
       {ValidateShapes, ValidateLengths, ValidateOptions, ValidateLse, ValidateBias}) {
    if (absl::Status status = check(task); !status.ok()) return status;
  }
  return absl::OkStatus();
}

int64_t VisiblePairs(const MaskSpec& mask, int64_t seqlen_q, int64_t seqlen_k) {
  return static_cast<int64_t>(std::min<Wide>(WideVisiblePairs(mask, seqlen_q, seqlen_k), kMax64));
}

double Flops(const AttentionTask& task) {
  return 2.0 * static_cast<double>(task.head_dim() + task.head_dim_v()) *
         static_cast<double>(task.heads_q()) *
         static_cast<double>(WideVisiblePairs(task.mask, task.seqlen_q, task.seqlen_k));
}

int64_t ScoreMatrixBytes(const AttentionTask& task) {
  int64_t bytes = ByteSize(task.dtype());
  for (const int64_t factor : {task.heads_q(), task.seqlen_q, task.seqlen_k}) {
    if (factor == 0) return 0;
  }
  for (const int64_t factor : {task.heads_q(), task.seqlen_q, task.seqlen_k}) {
    bytes = CheckedMultiply(bytes, factor).value_or(kMax64);
  }
  return bytes;
}

std::optional<int64_t> CheckedMultiply(int64_t a, int64_t b) {
  int64_t product;
  if (a < 0 || b < 0 || __builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

std::optional<int64_t> CheckedAdd(int64_t a, int64_t b) {
  int64_t sum;
  if (a < 0 || b < 0 || __builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

}  // namespace attend
