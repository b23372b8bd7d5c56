#include "tests/testing/attend_request.h"

#include <cmath>
#include <utility>

#include "kernels/reference/number_formats.h"
#include "tests/testing/expectation.h"

namespace attend::testing {
namespace {

DType ToDType(v1::DataType type) {
  return type == v1::DATA_TYPE_FP32   ? DType::kF32
         : type == v1::DATA_TYPE_FP16 ? DType::kF16
                                      : DType::kBF16;
}

// What the oracle needs, over the request's own bytes and copies of the reply's.
struct Sequences {
  std::string o, lse;
  std::vector<AttentionTask> tasks;
};

TensorView View(const std::string& bytes, DType dtype, int64_t first, int64_t rows, int64_t heads,
                int64_t columns) {
  char* data = const_cast<char*>(bytes.data()) + first * heads * columns * ByteSize(dtype);
  return TensorView::Contiguous(data, dtype, MemoryKind::kHost, rows, heads, columns);
}

void Cut(const v1::AttendRequest& r, Sequences* out) {
  const int rank = r.q().shape_size();
  const bool ragged = r.cu_seqlens_q_size() > 0;
  const int64_t rows_q = r.q().shape(rank - 3), rows_k = r.k().shape(rank - 3);
  const int64_t hq = r.q().shape(rank - 2), hk = r.k().shape(rank - 2);
  const int64_t d = r.q().shape(rank - 1), dv = r.v().shape(rank - 1);
  const DType dtype = ToDType(r.q().data_type());
  const int64_t count = ragged ? r.cu_seqlens_q_size() - 1 : rank == 4 ? r.q().shape(0) : 1;
  for (int i = 0; i < count; ++i) {
    AttentionTask t;
    int64_t q0 = i * rows_q, nq = rows_q, k0 = i * rows_k, nk = rows_k;
    if (ragged) {
      q0 = r.cu_seqlens_q(i), nq = r.cu_seqlens_q(i + 1) - q0;
      k0 = r.cu_seqlens_k(i), nk = r.cu_seqlens_k(i + 1) - k0;
    }
    t.q = View(r.q().inline_(), dtype, q0, nq, hq, d);
    t.k = View(r.k().inline_(), dtype, k0, nk, hk, d);
    t.v = View(r.v().inline_(), dtype, k0, nk, hk, dv);
    t.o = View(out->o, dtype, q0, nq, hq, dv);
    t.seqlen_q = r.q_lens_size() > 0 ? r.q_lens(i) : nq;
    t.seqlen_k = r.kv_lens_size() > 0 ? r.kv_lens(i) : nk;
    t.softmax_scale =
        r.has_softmax_scale() ? r.softmax_scale() : static_cast<float>(1 / std::sqrt(double(d)));
    t.softcap = r.softcap();
    t.mask.causal = r.causal();
    if (r.window().has_left()) t.mask.window_left = r.window().left();
    if (r.window().has_right()) t.mask.window_right = r.window().right();
    if (r.return_lse()) {
      t.lse.data = reinterpret_cast<float*>(out->lse.data()) + (ragged ? q0 : i * hq * rows_q);
      t.lse.head_stride = rows_q;
    }
    if (r.has_bias()) {
      const auto& s = r.bias().shape();
      const int n = s.size();
      t.bias.dtype = ToDType(r.bias().data_type());
      const int64_t heads = s[n - 3], rows = s[n - 2];
      const int64_t batch = n == 4 ? s[0] : 1;
      t.bias.data = r.bias().inline_().data() +
                    (batch == 1 ? 0 : i) * heads * rows * rows_k * ByteSize(t.bias.dtype);
      t.bias.head_stride = heads == 1 ? 0 : rows * rows_k;
      t.bias.row_stride = rows == 1 ? 0 : rows_k;
    }
    if (r.has_alibi_slopes()) {
      t.alibi_slopes.data = reinterpret_cast<const float*>(r.alibi_slopes().inline_().data());
    }
    if (r.has_sinks()) t.sinks.data = reinterpret_cast<const float*>(r.sinks().inline_().data());
    out->tasks.push_back(t);
  }
}

}  // namespace

v1::Tensor RandomTensor(v1::DataType data_type, const std::vector<int64_t>& shape, Random* random) {
  v1::Tensor tensor;
  tensor.set_data_type(data_type);
  int64_t count = 1;
  for (int64_t dimension : shape) {
    tensor.add_shape(dimension);
    count *= dimension;
  }
  std::string* bytes = tensor.mutable_inline_();
  for (int64_t i = 0; i < count; ++i) {
    const DType dtype = ToDType(data_type);
    alignas(4) char element[4];
    reference::StoreElement(element, dtype, 0, random->Normal());
    bytes->append(element, static_cast<size_t>(ByteSize(dtype)));
  }
  return tensor;
}

v1::AttendRequest MakeRequest(const RequestShape& s, Random* random) {
  const auto shape = [&](int64_t rows, int64_t heads, int64_t columns) {
    std::vector<int64_t> dims = {rows, heads, columns};
    if (s.batch > 0) dims.insert(dims.begin(), s.batch);
    return dims;
  };
  v1::AttendRequest request;
  *request.mutable_q() = RandomTensor(s.data_type, shape(s.rows_q, s.heads_q, s.head_dim), random);
  *request.mutable_k() = RandomTensor(s.data_type, shape(s.rows_k, s.heads_k, s.head_dim), random);
  *request.mutable_v() =
      RandomTensor(s.data_type, shape(s.rows_k, s.heads_k, s.head_dim_v), random);
  return request;
}

::testing::AssertionResult Answers(const v1::AttendRequest& request,
                                   const v1::AttendResponse& reply) {
  const auto fail = [] { return ::testing::AssertionFailure(); };
  std::vector<int64_t> o_shape(request.q().shape().begin(), request.q().shape().end());
  o_shape.back() = request.v().shape(request.v().shape_size() - 1);
  if (std::vector<int64_t>(reply.o().shape().begin(), reply.o().shape().end()) != o_shape) {
    return fail() << "o has another shape: " << reply.o().shape_size() << " dimensions";
  }
  if (reply.o().data_type() != request.q().data_type()) return fail() << "o has another type";
  int64_t o_bytes = ByteSize(ToDType(request.q().data_type()));
  for (int64_t dimension : o_shape) o_bytes *= dimension;
  if (static_cast<int64_t>(reply.o().inline_().size()) != o_bytes) {
    return fail() << "o has " << reply.o().inline_().size() << " bytes, not " << o_bytes;
  }
  if (reply.has_lse() != request.return_lse()) return fail() << "lse given or missing";
  if (request.return_lse()) {
    std::vector<int64_t> lse_shape(o_shape.begin(), o_shape.end() - 1);
    std::swap(lse_shape[lse_shape.size() - 1], lse_shape[lse_shape.size() - 2]);
    if (std::vector<int64_t>(reply.lse().shape().begin(), reply.lse().shape().end()) != lse_shape ||
        reply.lse().data_type() != v1::DATA_TYPE_FP32) {
      return fail() << "lse has another shape or type";
    }
    int64_t lse_bytes = 4;
    for (int64_t dimension : lse_shape) lse_bytes *= dimension;
    if (static_cast<int64_t>(reply.lse().inline_().size()) != lse_bytes) {
      return fail() << "lse has " << reply.lse().inline_().size() << " bytes, not " << lse_bytes;
    }
  }
  Sequences sequences;
  sequences.o = reply.o().inline_();
  sequences.lse = reply.lse().inline_();
  Cut(request, &sequences);
  for (size_t i = 0; i < sequences.tasks.size(); ++i) {
    const AttentionTask& task = sequences.tasks[i];
    if (task.q.rows == 0) continue;
    ::testing::AssertionResult result = Matches(task, Expect(task));
    if (!result) return result << " in sequence " << i;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace attend::testing
