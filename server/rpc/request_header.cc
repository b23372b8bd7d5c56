#include "server/rpc/request_header.h"

#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/errors.h"

namespace attend {
namespace {

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

class HeaderCheck {
 public:
  HeaderCheck(const v1::AttendRequest& request, const ScannedMessage& scanned,
              const CodecLimits& limits)
      : request_(request), scanned_(scanned), limits_(limits) {}

  absl::StatusOr<RequestHeader> Run() {
    for (auto step :
         {&HeaderCheck::ReadOptions, &HeaderCheck::ReadTensors, &HeaderCheck::ReadBatching,
          &HeaderCheck::ReadShapes, &HeaderCheck::ReadLengths, &HeaderCheck::ReadExtras}) {
      if (absl::Status status = (this->*step)(); !status.ok()) return status;
    }
    return out_;
  }

 private:
  absl::Status ReadOptions() {
    if (absl::Status status = ValidateRequestId(request_.request_id()); !status.ok()) return status;
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
    out_.task.softcap = request_.softcap();
    out_.task.mask.causal = request_.causal();
    if (request_.has_window()) {
      const v1::Window& window = request_.window();
      if (window.has_left()) out_.task.mask.window_left = window.left();
      if (window.has_right()) out_.task.mask.window_right = window.right();
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
    out_.dtypes[static_cast<size_t>(slot)] = dtype;
    out_.bytes[static_cast<size_t>(slot)] = got;
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
      out_.batching = Batching::kRagged;
      return absl::OkStatus();
    }
    if (rank != 3 && rank != 4) {
      return InvalidField("q.shape",
                          absl::StrCat(ShapeText(request_.q()), " has ", rank,
                                       " dimensions, but one sequence has 3 and a batch 4"));
    }
    out_.batching = rank == 4 ? Batching::kPadded : Batching::kOne;
    if (out_.batching == Batching::kOne) {
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
    const int first = rank - 3;
    out_.sequences = rank == 4 ? q.shape(0) : 1;
    out_.rows_q = q.shape(first);
    out_.heads_q = q.shape(first + 1);
    out_.head_dim = q.shape(first + 2);
    out_.rows_k = request_.k().shape(first);
    out_.heads_k = request_.k().shape(first + 1);
    out_.head_dim_v = request_.v().shape(first + 2);
    // The rest (agreement of k and v with q, head counts, sizes of heads) is Validate's, of one
    // sequence over the whole padded shape: so it is judged even in a batch of no sequences.
    AttentionTask whole = out_.task;
    whole.q = View(out_.rows_q, out_.heads_q, out_.head_dim);
    whole.k = View(out_.rows_k, out_.heads_k, request_.k().shape(first + 2));
    whole.v = View(request_.v().shape(first), request_.v().shape(first + 1), out_.head_dim_v);
    whole.o = View(out_.rows_q, out_.heads_q, out_.head_dim_v);
    whole.seqlen_q = out_.rows_q;
    whole.seqlen_k = out_.rows_k;
    if (absl::Status status = Validate(whole); !status.ok()) return status;
    out_.task.softmax_scale =
        request_.has_softmax_scale()
            ? request_.softmax_scale()
            : static_cast<float>(1.0 / std::sqrt(static_cast<double>(out_.head_dim)));
    return absl::OkStatus();
  }

  absl::Status ReadLengths() {
    if (out_.batching == Batching::kRagged) {
      if (request_.cu_seqlens_k_size() != request_.cu_seqlens_q_size()) {
        return InvalidField("cu_seqlens_k", absl::StrCat(request_.cu_seqlens_k_size(),
                                                         " entries, but cu_seqlens_q has ",
                                                         request_.cu_seqlens_q_size()));
      }
      out_.sequences = request_.cu_seqlens_q_size() - 1;
    }
    if (out_.sequences > limits_.max_sequences) {
      return WithReason(
          InvalidField(out_.batching == Batching::kRagged ? "cu_seqlens_q" : "q.shape",
                       absl::StrCat(out_.sequences, " sequences, but the limit is ",
                                    limits_.max_sequences, " (--max-sequences)")),
          "TOO_LARGE");
    }
    if (out_.batching == Batching::kRagged) {
      absl::Status status = ReadOffsets("cu_seqlens_q", request_.cu_seqlens_q(), out_.rows_q);
      if (!status.ok()) return status;
      return ReadOffsets("cu_seqlens_k", request_.cu_seqlens_k(), out_.rows_k);
    }
    absl::Status status = ReadLens("q_lens", request_.q_lens(), out_.rows_q);
    if (!status.ok()) return status;
    return ReadLens("kv_lens", request_.kv_lens(), out_.rows_k);
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
    if (values.size() != out_.sequences) {
      return InvalidField(field, absl::StrCat(values.size(), " entries, but the batch has ",
                                              out_.sequences, " sequences"));
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
      if (tensor.shape_size() != 1 || tensor.shape(0) != out_.heads_q) {
        return InvalidField(
            std::string(Name(slot)) + ".shape",
            absl::StrCat(ShapeText(tensor), ", but it must be [", out_.heads_q, "]"));
      }
    }
    if (!request_.has_bias()) return absl::OkStatus();
    const v1::Tensor& bias = request_.bias();
    if (out_.batching == Batching::kRagged) {
      return UnsupportedOption("bias", "not for ragged batches");
    }
    if (bias.data_type() != v1::DATA_TYPE_FP32 && bias.data_type() != request_.q().data_type()) {
      return InvalidField(
          "bias.data_type",
          absl::StrCat(v1::DataType_Name(bias.data_type()), ", but it must be fp32 or that of q, ",
                       v1::DataType_Name(request_.q().data_type())));
    }
    const int rank = bias.shape_size();
    const bool rank_ok = rank == 4 || (rank == 3 && out_.batching == Batching::kOne);
    const auto one_or = [](int64_t got, int64_t full) { return got == 1 || got == full; };
    const int first = rank - 3;
    if (!rank_ok || (rank == 4 && !one_or(bias.shape(0), out_.sequences)) ||
        !one_or(bias.shape(first), out_.heads_q) || !one_or(bias.shape(first + 1), out_.rows_q) ||
        bias.shape(first + 2) != out_.rows_k) {
      return InvalidField(
          "bias.shape",
          absl::StrCat(ShapeText(bias), ", but it must be [1 or ", out_.sequences, ", 1 or ",
                       out_.heads_q, ", 1 or ", out_.rows_q, ", ", out_.rows_k, "]"));
    }
    out_.bias_rows = bias.shape(first + 1);
    out_.bias_heads = bias.shape(first);
    out_.bias_sequences = rank == 4 ? bias.shape(0) : 1;
    return absl::OkStatus();
  }

  TensorView View(int64_t rows, int64_t heads, int64_t columns) const {
    return TensorView::Contiguous(nullptr, out_.dtype(), MemoryKind::kHost, rows, heads, columns);
  }

  const v1::AttendRequest& request_;
  const ScannedMessage& scanned_;
  const CodecLimits& limits_;
  RequestHeader out_;
};

}  // namespace

absl::StatusOr<RequestHeader> CheckHeader(const v1::AttendRequest& request,
                                          const ScannedMessage& scanned,
                                          const CodecLimits& limits) {
  return HeaderCheck(request, scanned, limits).Run();
}

}  // namespace attend
