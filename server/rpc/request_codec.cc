#include "server/rpc/request_codec.h"

#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/errors.h"

namespace attend {
namespace {

// Tasks are made before there is memory for them: their pointers count from here, so that "absent"
// keeps its meaning, until PlaceTasks moves them.
constexpr uintptr_t kPlaceholder = kStagingAlignment;

void* At(size_t offset) { return reinterpret_cast<void*>(kPlaceholder + offset); }

std::string ShapeText(const v1::Tensor& tensor) {
  return absl::StrCat("[", absl::StrJoin(tensor.shape(), ", "), "]");
}

const v1::Tensor& TensorOf(const v1::AttendRequest& request, TensorSlot slot) {
  switch (slot) {
    case TensorSlot::kQ:
      return request.q();
    case TensorSlot::kK:
      return request.k();
    case TensorSlot::kV:
      return request.v();
    case TensorSlot::kBias:
      return request.bias();
    case TensorSlot::kAlibi:
      return request.alibi_slopes();
    case TensorSlot::kSinks:
      return request.sinks();
  }
  return v1::Tensor::default_instance();
}

bool Has(const v1::AttendRequest& request, TensorSlot slot) {
  switch (slot) {
    case TensorSlot::kQ:
      return request.has_q();
    case TensorSlot::kK:
      return request.has_k();
    case TensorSlot::kV:
      return request.has_v();
    case TensorSlot::kBias:
      return request.has_bias();
    case TensorSlot::kAlibi:
      return request.has_alibi_slopes();
    case TensorSlot::kSinks:
      return request.has_sinks();
  }
  return false;
}

// Sequences of a request: how its tensors are cut.
enum class Batching : uint8_t { kOne, kPadded, kRagged };

class Decoder {
 public:
  Decoder(const v1::AttendRequest& request, const ScannedMessage& scanned,
          const CodecLimits& limits)
      : request_(request), scanned_(scanned), limits_(limits) {}

  absl::StatusOr<DecodedRequest> Run() {
    for (auto step : {&Decoder::ReadOptions, &Decoder::ReadTensors, &Decoder::ReadBatching,
                      &Decoder::ReadShapes, &Decoder::ReadLengths, &Decoder::ReadExtras,
                      &Decoder::LayOut, &Decoder::MakeTasks}) {
      if (absl::Status status = (this->*step)(); !status.ok()) return status;
    }
    return std::move(out_);
  }

 private:
  absl::Status ReadOptions() {
    if (absl::Status status = ValidateRequestId(request_.request_id()); !status.ok()) return status;
    out_.request_id = request_.request_id();
    switch (request_.priority()) {
      case v1::PRIORITY_UNSPECIFIED:
      case v1::PRIORITY_NORMAL:
        out_.priority = Priority::kNormal;
        break;
      case v1::PRIORITY_LOW:
        out_.priority = Priority::kLow;
        break;
      case v1::PRIORITY_HIGH:
        out_.priority = Priority::kHigh;
        break;
      default:
        return InvalidField("priority", absl::StrCat("unknown value ", request_.priority()));
    }
    if (request_.has_o_destination()) {
      return UnsupportedOption("o_destination", "regions are not supported yet");
    }
    if (request_.has_lse_destination()) {
      return UnsupportedOption("lse_destination", "regions are not supported yet");
    }
    if (request_.has_softmax_scale() && !std::isfinite(request_.softmax_scale())) {
      return InvalidField("softmax_scale",
                          absl::StrCat(request_.softmax_scale(), " is not finite"));
    }
    if (!std::isfinite(request_.softcap()) || request_.softcap() < 0) {
      return InvalidField("softcap",
                          absl::StrCat(request_.softcap(), " is not a finite number >= 0"));
    }
    task_.softcap = request_.softcap();
    task_.mask.causal = request_.causal();
    if (request_.has_window()) {
      const v1::Window& window = request_.window();
      if (window.has_left()) task_.mask.window_left = window.left();
      if (window.has_right()) task_.mask.window_right = window.right();
      if (window.left() < 0) {
        return InvalidField("window.left", absl::StrCat(window.left(), " is negative"));
      }
      if (window.right() < 0) {
        return InvalidField("window.right", absl::StrCat(window.right(), " is negative"));
      }
    }
    return absl::OkStatus();
  }

  // What can be said of each tensor alone.
  absl::Status ReadTensors() {
    for (int i = 0; i < kTensorSlots; ++i) {
      const TensorSlot slot = static_cast<TensorSlot>(i);
      if (Has(request_, slot)) {
        if (absl::Status status = ReadTensor(slot); !status.ok()) return status;
      } else if (slot == TensorSlot::kQ || slot == TensorSlot::kK || slot == TensorSlot::kV) {
        return InvalidField(Name(slot), "missing");
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadTensor(TensorSlot slot) {
    const v1::Tensor& tensor = TensorOf(request_, slot);
    const std::string name = Name(slot);
    DType dtype;
    switch (tensor.data_type()) {
      case v1::DATA_TYPE_FP32:
        dtype = DType::kF32;
        break;
      case v1::DATA_TYPE_FP16:
        dtype = DType::kF16;
        break;
      case v1::DATA_TYPE_BF16:
        dtype = DType::kBF16;
        break;
      case v1::DATA_TYPE_UNSPECIFIED:
        return InvalidField(name + ".data_type", "missing");
      default:
        return InvalidField(name + ".data_type",
                            absl::StrCat("unknown value ", tensor.data_type()));
    }
    if (tensor.strides_size() > 0) {
      return UnsupportedOption(name + ".strides", "only contiguous tensors are supported yet");
    }
    if (tensor.has_region()) {
      return UnsupportedOption(name + ".region", "regions are not supported yet");
    }
    if (tensor.data_case() != v1::Tensor::kInline) return InvalidField(name + ".inline", "missing");

    std::optional<int64_t> bytes = ByteSize(dtype);
    bool empty = false;  // a 0 does not excuse a product past 64 bits
    for (const int64_t dimension : tensor.shape()) {
      if (dimension < 0) {
        return InvalidField(name + ".shape", absl::StrCat(dimension, " is negative"));
      }
      if (dimension == 0) empty = true;
      if (bytes && dimension > 0) bytes = CheckedMultiply(*bytes, dimension);
    }
    if (!bytes) {
      return InvalidField(name + ".shape",
                          absl::StrCat(ShapeText(tensor), " has more than 2^63 bytes"));
    }
    if (empty) bytes = 0;
    const int64_t got = scanned_.at(slot).size;
    if (*bytes != got) {
      return InvalidField(name + ".inline",
                          absl::StrCat(got, " bytes came, but shape ", ShapeText(tensor), " of ",
                                       std::string(Name(dtype)), " has ", *bytes));
    }
    dtypes_[static_cast<size_t>(slot)] = dtype;
    return absl::OkStatus();
  }

  absl::Status ReadBatching() {
    const bool ragged_q = request_.cu_seqlens_q_size() > 0;
    const bool ragged_k = request_.cu_seqlens_k_size() > 0;
    if (ragged_q != ragged_k) {
      return InvalidField(
          ragged_q ? "cu_seqlens_k" : "cu_seqlens_q",
          ragged_q ? "missing, but cu_seqlens_q is given" : "missing, but cu_seqlens_k is given");
    }
    const int rank = request_.q().shape_size();
    if (ragged_q) {
      if (request_.q_lens_size() > 0) {
        return InvalidField("q_lens", "excludes cu_seqlens_q: give one of them");
      }
      if (request_.kv_lens_size() > 0) {
        return InvalidField("kv_lens", "excludes cu_seqlens_k: give one of them");
      }
      if (rank != 3) {
        return InvalidField("q.shape", absl::StrCat(ShapeText(request_.q()), " has ", rank,
                                                    " dimensions, but a ragged batch has 3"));
      }
      batching_ = Batching::kRagged;
      return absl::OkStatus();
    }
    if (rank != 3 && rank != 4) {
      return InvalidField("q.shape",
                          absl::StrCat(ShapeText(request_.q()), " has ", rank,
                                       " dimensions, but one sequence has 3 and a batch 4"));
    }
    batching_ = rank == 4 ? Batching::kPadded : Batching::kOne;
    if (batching_ == Batching::kOne) {
      if (request_.q_lens_size() > 0) return InvalidField("q_lens", "needs a batch (4 dimensions)");
      if (request_.kv_lens_size() > 0) {
        return InvalidField("kv_lens", "needs a batch (4 dimensions)");
      }
    }
    return absl::OkStatus();
  }

  // q, k and v against each other.
  absl::Status ReadShapes() {
    const v1::Tensor& q = request_.q();
    const int rank = q.shape_size();
    for (TensorSlot slot : {TensorSlot::kK, TensorSlot::kV}) {
      const v1::Tensor& tensor = TensorOf(request_, slot);
      if (tensor.shape_size() != rank) {
        return InvalidField(std::string(Name(slot)) + ".shape",
                            absl::StrCat(ShapeText(tensor), " has ", tensor.shape_size(),
                                         " dimensions, but q has ", rank));
      }
      if (tensor.data_type() != q.data_type()) {
        return InvalidField(std::string(Name(slot)) + ".data_type",
                            absl::StrCat(v1::DataType_Name(tensor.data_type()), ", but q has ",
                                         v1::DataType_Name(q.data_type())));
      }
      if (rank == 4 && tensor.shape(0) != q.shape(0)) {
        return InvalidField(std::string(Name(slot)) + ".shape",
                            absl::StrCat(tensor.shape(0), " sequences, but q has ", q.shape(0)));
      }
    }
    out_.dtype = dtypes_[static_cast<size_t>(TensorSlot::kQ)];
    const int first = rank - 3;
    sequences_ = rank == 4 ? q.shape(0) : 1;
    rows_q_ = q.shape(first);
    heads_q_ = q.shape(first + 1);
    head_dim_ = q.shape(first + 2);
    rows_k_ = request_.k().shape(first);
    heads_k_ = request_.k().shape(first + 1);
    head_dim_v_ = request_.v().shape(first + 2);
    // The rest (agreement of k and v with q, head counts, sizes of heads) is Validate's, of one
    // sequence over the whole padded shape: so it is judged even in a batch of no sequences.
    AttentionTask whole = task_;
    whole.q = View(0, rows_q_, heads_q_, head_dim_);
    whole.k = View(0, rows_k_, heads_k_, request_.k().shape(first + 2));
    whole.v = View(0, request_.v().shape(first), request_.v().shape(first + 1), head_dim_v_);
    whole.o = View(0, rows_q_, heads_q_, head_dim_v_);
    whole.seqlen_q = rows_q_;
    whole.seqlen_k = rows_k_;
    if (absl::Status status = Validate(whole); !status.ok()) return status;
    task_.softmax_scale = request_.has_softmax_scale()
                              ? request_.softmax_scale()
                              : static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim_)));
    return absl::OkStatus();
  }

  absl::Status ReadLengths() {
    if (batching_ == Batching::kRagged) {
      if (request_.cu_seqlens_k_size() != request_.cu_seqlens_q_size()) {
        return InvalidField("cu_seqlens_k", absl::StrCat(request_.cu_seqlens_k_size(),
                                                         " entries, but cu_seqlens_q has ",
                                                         request_.cu_seqlens_q_size()));
      }
      sequences_ = request_.cu_seqlens_q_size() - 1;
    }
    if (sequences_ > limits_.max_sequences) {
      return WithReason(InvalidField(batching_ == Batching::kRagged ? "cu_seqlens_q" : "q.shape",
                                     absl::StrCat(sequences_, " sequences, but the limit is ",
                                                  limits_.max_sequences, " (--max-sequences)")),
                        "TOO_LARGE");
    }
    if (batching_ == Batching::kRagged) {
      absl::Status status = ReadOffsets("cu_seqlens_q", request_.cu_seqlens_q(), rows_q_);
      if (!status.ok()) return status;
      return ReadOffsets("cu_seqlens_k", request_.cu_seqlens_k(), rows_k_);
    }
    absl::Status status = ReadLens("q_lens", request_.q_lens(), rows_q_);
    if (!status.ok()) return status;
    return ReadLens("kv_lens", request_.kv_lens(), rows_k_);
  }

  template <typename Values>
  absl::Status ReadOffsets(std::string_view field, const Values& values, int64_t total) {
    const auto entry = [&](int i) { return absl::StrCat(std::string(field), "[", i, "]"); };
    if (values[0] != 0) {
      return InvalidField(entry(0), absl::StrCat(values[0], ", but the first is 0"));
    }
    for (int i = 1; i < values.size(); ++i) {
      if (values[i] < values[i - 1]) {
        return InvalidField(entry(i),
                            absl::StrCat(values[i], " is less than ", values[i - 1], " before it"));
      }
    }
    const int last = values.size() - 1;
    if (values[last] != total) {
      return InvalidField(entry(last), absl::StrCat(values[last], ", but the last is the ", total,
                                                    " rows of the tensor"));
    }
    return absl::OkStatus();
  }

  template <typename Values>
  absl::Status ReadLens(std::string_view field, const Values& values, int64_t padded) {
    if (values.empty()) return absl::OkStatus();
    if (values.size() != sequences_) {
      return InvalidField(field, absl::StrCat(values.size(), " entries, but the batch has ",
                                              sequences_, " sequences"));
    }
    for (int i = 0; i < values.size(); ++i) {
      if (values[i] < 0 || values[i] > padded) {
        return InvalidField(absl::StrCat(std::string(field), "[", i, "]"),
                            absl::StrCat(values[i], " is not in 0 to ", padded));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadExtras() {
    for (TensorSlot slot : {TensorSlot::kAlibi, TensorSlot::kSinks}) {
      if (!Has(request_, slot)) continue;
      const v1::Tensor& tensor = TensorOf(request_, slot);
      if (tensor.data_type() != v1::DATA_TYPE_FP32) {
        return InvalidField(
            std::string(Name(slot)) + ".data_type",
            absl::StrCat(v1::DataType_Name(tensor.data_type()), ", but it must be fp32"));
      }
      if (tensor.shape_size() != 1 || tensor.shape(0) != heads_q_) {
        return InvalidField(std::string(Name(slot)) + ".shape",
                            absl::StrCat(ShapeText(tensor), ", but it must be [", heads_q_, "]"));
      }
    }
    if (!request_.has_bias()) return absl::OkStatus();
    const v1::Tensor& bias = request_.bias();
    if (batching_ == Batching::kRagged) {
      return UnsupportedOption("bias", "not for ragged batches");
    }
    if (bias.data_type() != v1::DATA_TYPE_FP32 && bias.data_type() != request_.q().data_type()) {
      return InvalidField(
          "bias.data_type",
          absl::StrCat(v1::DataType_Name(bias.data_type()), ", but it must be fp32 or that of q, ",
                       v1::DataType_Name(request_.q().data_type())));
    }
    const int rank = bias.shape_size();
    const bool rank_ok = rank == 4 || (rank == 3 && batching_ == Batching::kOne);
    const auto one_or = [](int64_t got, int64_t full) { return got == 1 || got == full; };
    const int first = rank - 3;
    if (!rank_ok || (rank == 4 && !one_or(bias.shape(0), sequences_)) ||
        !one_or(bias.shape(first), heads_q_) || !one_or(bias.shape(first + 1), rows_q_) ||
        bias.shape(first + 2) != rows_k_) {
      return InvalidField(
          "bias.shape", absl::StrCat(ShapeText(bias), ", but it must be [1 or ", sequences_,
                                     ", 1 or ", heads_q_, ", 1 or ", rows_q_, ", ", rows_k_, "]"));
    }
    bias_rows_ = bias.shape(first + 1);
    bias_heads_ = bias.shape(first);
    bias_sequences_ = rank == 4 ? bias.shape(0) : 1;
    return absl::OkStatus();
  }

  // Offsets of all tensors in staging.
  absl::Status LayOut() {
    int64_t end = 0;
    bool fits = true;
    const auto place = [&](std::optional<int64_t> bytes) {
      const int64_t offset = end;
      const std::optional<int64_t> padded = CheckedAdd(bytes.value_or(-1), kStagingAlignment - 1);
      const std::optional<int64_t> next = padded ? CheckedAdd(end, *padded) : std::nullopt;
      fits = fits && next.has_value();
      end = next.value_or(end) & ~static_cast<int64_t>(kStagingAlignment - 1);
      return static_cast<size_t>(offset);
    };
    for (int i = 0; i < kTensorSlots; ++i) {
      const int64_t bytes =
          Has(request_, static_cast<TensorSlot>(i)) ? scanned_.tensors[i].size : 0;
      out_.input_offsets[i] = place(bytes);
      out_.input_bytes += bytes;
    }
    const auto product = [](std::initializer_list<int64_t> factors) {
      std::optional<int64_t> result = 1;
      for (int64_t factor : factors) {
        if (result) result = CheckedMultiply(*result, factor);
      }
      return result;
    };
    const int64_t batch = batching_ == Batching::kPadded ? sequences_ : 1;
    const std::optional<int64_t> o_bytes =
        product({batch, rows_q_, heads_q_, head_dim_v_, ByteSize(out_.dtype)});
    out_.o.wanted = true;
    out_.o.offset = place(o_bytes);
    out_.o.bytes = static_cast<size_t>(o_bytes.value_or(0));
    out_.o.shape = {rows_q_, heads_q_, head_dim_v_};
    if (request_.return_lse()) {
      const std::optional<int64_t> lse_bytes = product({batch, heads_q_, rows_q_, 4});
      out_.lse.wanted = true;
      out_.lse.offset = place(lse_bytes);
      out_.lse.bytes = static_cast<size_t>(lse_bytes.value_or(0));
      out_.lse.shape = {heads_q_, rows_q_};
    }
    if (batching_ == Batching::kPadded) {
      out_.o.shape.insert(out_.o.shape.begin(), sequences_);
      if (out_.lse.wanted) out_.lse.shape.insert(out_.lse.shape.begin(), sequences_);
    }
    place(sequences_ * static_cast<int64_t>(sizeof(AttentionTask)));  // at most max_sequences
    if (!fits) return InvalidField("q.shape", "the tensors have more than 2^63 bytes");
    out_.staging_bytes = static_cast<size_t>(end);
    return absl::OkStatus();
  }

  absl::Status MakeTasks() {
    out_.sequences = sequences_;
    out_.tasks.reserve(static_cast<size_t>(sequences_));
    for (int64_t i = 0; i < sequences_; ++i) {
      const AttentionTask task = MakeTask(static_cast<int>(i));
      if (absl::Status status = Validate(task); !status.ok()) return status;
      out_.query_tokens += task.seqlen_q;
      out_.kv_tokens += task.seqlen_k;
      out_.padding_tokens += task.q.rows - task.seqlen_q;
      if (task.q.rows > 0) out_.tasks.push_back(task);
    }
    return absl::OkStatus();
  }

  AttentionTask MakeTask(int i) const {
    AttentionTask task = task_;
    int64_t first_q = i * rows_q_, rows_q = rows_q_;
    int64_t first_k = i * rows_k_, rows_k = rows_k_;
    if (batching_ == Batching::kRagged) {
      first_q = request_.cu_seqlens_q(i);
      rows_q = request_.cu_seqlens_q(i + 1) - first_q;
      first_k = request_.cu_seqlens_k(i);
      rows_k = request_.cu_seqlens_k(i + 1) - first_k;
    }
    const int64_t width = ByteSize(out_.dtype);
    const auto view = [&](size_t offset, int64_t first, int64_t rows, int64_t heads,
                          int64_t columns) {
      return View(offset + static_cast<size_t>(first * heads * columns * width), rows, heads,
                  columns);
    };
    const auto input = [&](TensorSlot slot) {
      return out_.input_offsets[static_cast<size_t>(slot)];
    };
    task.q = view(input(TensorSlot::kQ), first_q, rows_q, heads_q_, head_dim_);
    task.k = view(input(TensorSlot::kK), first_k, rows_k, heads_k_, head_dim_);
    task.v = view(input(TensorSlot::kV), first_k, rows_k, heads_k_, head_dim_v_);
    task.o = view(out_.o.offset, first_q, rows_q, heads_q_, head_dim_v_);
    task.seqlen_q = request_.q_lens_size() > 0 ? request_.q_lens(i) : rows_q;
    task.seqlen_k = request_.kv_lens_size() > 0 ? request_.kv_lens(i) : rows_k;
    if (out_.lse.wanted) {
      const int64_t first =
          batching_ == Batching::kRagged ? first_q : int64_t{i} * heads_q_ * rows_q_;
      task.lse.data = static_cast<float*>(At(out_.lse.offset)) + first;
      task.lse.head_stride = rows_q_;
    }
    if (request_.has_bias()) {
      const int64_t head = bias_rows_ * rows_k_;
      const int64_t sequence = bias_sequences_ == 1 ? 0 : i * bias_heads_ * head;
      task.bias.dtype = dtypes_[static_cast<size_t>(TensorSlot::kBias)];
      task.bias.data =
          At(input(TensorSlot::kBias) + static_cast<size_t>(sequence * ByteSize(task.bias.dtype)));
      task.bias.head_stride = bias_heads_ == 1 ? 0 : head;
      task.bias.row_stride = bias_rows_ == 1 ? 0 : rows_k_;
    }
    if (request_.has_alibi_slopes()) {
      task.alibi_slopes.data = static_cast<const float*>(At(input(TensorSlot::kAlibi)));
    }
    if (request_.has_sinks()) {
      task.sinks.data = static_cast<const float*>(At(input(TensorSlot::kSinks)));
    }
    return task;
  }

  TensorView View(size_t offset, int64_t rows, int64_t heads, int64_t columns) const {
    return TensorView::Contiguous(At(offset), out_.dtype, MemoryKind::kHost, rows, heads, columns);
  }

  const v1::AttendRequest& request_;
  const ScannedMessage& scanned_;
  const CodecLimits& limits_;
  DecodedRequest out_;
  AttentionTask task_;  // what all tasks of the request share
  std::array<DType, kTensorSlots> dtypes_{};
  Batching batching_ = Batching::kOne;
  int64_t sequences_ = 0;
  int64_t rows_q_ = 0, rows_k_ = 0;  // of one sequence, padded; of all when ragged
  int64_t heads_q_ = 0, heads_k_ = 0;
  int64_t head_dim_ = 0, head_dim_v_ = 0;
  int64_t bias_sequences_ = 0, bias_heads_ = 0, bias_rows_ = 0;
};

}  // namespace

absl::StatusOr<DecodedRequest> DecodeRequest(const v1::AttendRequest& header,
                                             const ScannedMessage& scanned,
                                             const CodecLimits& limits) {
  return Decoder(header, scanned, limits).Run();
}

void PlaceTasks(DecodedRequest* request, std::byte* staging, MemoryKind memory) {
  const auto move = [&](auto* pointer) {
    using Pointer = decltype(pointer);
    return reinterpret_cast<Pointer>(staging +
                                     (reinterpret_cast<uintptr_t>(pointer) - kPlaceholder));
  };
  for (AttentionTask& task : request->tasks) {
    for (TensorView* view : {&task.q, &task.k, &task.v, &task.o}) {
      view->data = move(view->data);
      view->memory = memory;
    }
    if (!task.lse.absent()) task.lse.data = move(task.lse.data);
    if (!task.bias.absent()) task.bias.data = move(task.bias.data);
    if (!task.alibi_slopes.absent()) task.alibi_slopes.data = move(task.alibi_slopes.data);
    if (!task.sinks.absent()) task.sinks.data = move(task.sinks.data);
    task.lse.memory = task.bias.memory = memory;
    task.alibi_slopes.memory = task.sinks.memory = memory;
  }
}

absl::Status ValidateRequestId(const std::string& id) {
  if (id.size() > kMaxRequestIdBytes) {
    return InvalidField("request_id", absl::StrCat(id.size(), " characters, but the limit is ",
                                                   kMaxRequestIdBytes));
  }
  for (const char c : id) {
    if (c < 0x20 || c > 0x7e) {
      return InvalidField("request_id", "a character is not printable ASCII");
    }
  }
  return absl::OkStatus();
}

}  // namespace attend
