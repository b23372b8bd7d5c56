#include "server/rpc/request_codec.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/errors.h"
#include "server/rpc/request_header.h"

namespace attend {
namespace {

// Tasks are made before there is memory for them: their pointers count from here, so that "absent"
// keeps its meaning, until PlaceTasks moves them.
constexpr uintptr_t kPlaceholder = kStagingAlignment;

// NOLINTNEXTLINE(performance-no-int-to-ptr): never followed
void* At(size_t offset) { return reinterpret_cast<void*>(kPlaceholder + offset); }

class Decoder {
 public:
  Decoder(const v1::AttendRequest& request, const RequestHeader& header)
      : request_(request), header_(header) {}

  absl::StatusOr<DecodedRequest> Run() {
    out_.request_id = request_.request_id();
    out_.priority = header_.priority;
    out_.dtype = header_.dtype();
    if (absl::Status status = LayOut(); !status.ok()) return status;
    if (absl::Status status = MakeTasks(); !status.ok()) return status;
    return std::move(out_);
  }

 private:
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
      const int64_t bytes = header_.bytes[static_cast<size_t>(i)];
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
    const int64_t batch = header_.batching == Batching::kPadded ? header_.sequences : 1;
    const std::optional<int64_t> o_bytes =
        product({batch, header_.rows_q, header_.heads_q, header_.head_dim_v, ByteSize(out_.dtype)});
    out_.o.wanted = true;
    out_.o.offset = place(o_bytes);
    out_.o.bytes = static_cast<size_t>(o_bytes.value_or(0));
    out_.o.shape = {header_.rows_q, header_.heads_q, header_.head_dim_v};
    if (request_.return_lse()) {
      const std::optional<int64_t> lse_bytes = product({batch, header_.heads_q, header_.rows_q, 4});
      out_.lse.wanted = true;
      out_.lse.offset = place(lse_bytes);
      out_.lse.bytes = static_cast<size_t>(lse_bytes.value_or(0));
      out_.lse.shape = {header_.heads_q, header_.rows_q};
    }
    if (header_.batching == Batching::kPadded) {
      out_.o.shape.insert(out_.o.shape.begin(), header_.sequences);
      if (out_.lse.wanted) out_.lse.shape.insert(out_.lse.shape.begin(), header_.sequences);
    }
    place(header_.sequences *
          static_cast<int64_t>(sizeof(AttentionTask)));  // at most max_sequences
    if (!fits) return InvalidField("q.shape", "the tensors have more than 2^63 bytes");
    out_.staging_bytes = static_cast<size_t>(end);
    return absl::OkStatus();
  }

  absl::Status MakeTasks() {
    out_.sequences = header_.sequences;
    out_.tasks.reserve(static_cast<size_t>(header_.sequences));
    for (int64_t i = 0; i < header_.sequences; ++i) {
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
    AttentionTask task = header_.task;
    int64_t first_q = i * header_.rows_q, rows_q = header_.rows_q;
    int64_t first_k = i * header_.rows_k, rows_k = header_.rows_k;
    if (header_.batching == Batching::kRagged) {
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
    task.q = view(input(TensorSlot::kQ), first_q, rows_q, header_.heads_q, header_.head_dim);
    task.k = view(input(TensorSlot::kK), first_k, rows_k, header_.heads_k, header_.head_dim);
    task.v = view(input(TensorSlot::kV), first_k, rows_k, header_.heads_k, header_.head_dim_v);
    task.o = view(out_.o.offset, first_q, rows_q, header_.heads_q, header_.head_dim_v);
    task.seqlen_q = request_.q_lens_size() > 0 ? request_.q_lens(i) : rows_q;
    task.seqlen_k = request_.kv_lens_size() > 0 ? request_.kv_lens(i) : rows_k;
    if (out_.lse.wanted) {
      const int64_t first = header_.batching == Batching::kRagged
                                ? first_q
                                : int64_t{i} * header_.heads_q * header_.rows_q;
      task.lse.data = static_cast<float*>(At(out_.lse.offset)) + first;
      task.lse.head_stride = header_.rows_q;
    }
    if (request_.has_bias()) {
      const int64_t head = header_.bias_rows * header_.rows_k;
      const int64_t sequence = header_.bias_sequences == 1 ? 0 : i * header_.bias_heads * head;
      task.bias.dtype = header_.dtypes[static_cast<size_t>(TensorSlot::kBias)];
      task.bias.data =
          At(input(TensorSlot::kBias) + static_cast<size_t>(sequence * ByteSize(task.bias.dtype)));
      task.bias.head_stride = header_.bias_heads == 1 ? 0 : head;
      task.bias.row_stride = header_.bias_rows == 1 ? 0 : header_.rows_k;
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
  const RequestHeader& header_;
  DecodedRequest out_;
};

}  // namespace

absl::StatusOr<DecodedRequest> DecodeRequest(const v1::AttendRequest& request,
                                             const ScannedMessage& scanned,
                                             const CodecLimits& limits) {
  const absl::StatusOr<RequestHeader> header = CheckHeader(request, scanned, limits);
  if (!header.ok()) return header.status();
  return Decoder(request, *header).Run();
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
