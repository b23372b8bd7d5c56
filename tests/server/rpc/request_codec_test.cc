// What the codec makes of requests: a row for each way to be wrong, and the layout of right ones.

#include "server/rpc/request_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "kernels/errors.h"
#include "tests/testing/attend_request.h"

namespace attend {
namespace {

using ::testing::HasSubstr;
using testing::MakeRequest;
using testing::Random;
using testing::RandomTensor;
using testing::RequestShape;
using v1::AttendRequest;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

absl::StatusOr<DecodedRequest> Decode(const AttendRequest& request, CodecLimits limits = {}) {
  const std::string bytes = request.SerializeAsString();
  const Fragment slice = {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()};
  absl::StatusOr<ScannedMessage> scanned =
      ScanMessage({&slice, 1}, MessageKind::kAttendRequest, limits.max_header_bytes);
  if (!scanned.ok()) return scanned.status();
  AttendRequest header;
  if (!header.ParseFromString(scanned->header)) return absl::InternalError("header is broken");
  if (absl::Status status = RefuseUnknownFields(header); !status.ok()) return status;
  return DecodeRequest(header, *scanned, limits);
}

// Where a bad request starts from: all are good.
AttendRequest One() {
  Random random(1);
  return MakeRequest({}, &random);
}
AttendRequest Padded() {  // two sequences
  Random random(2);
  RequestShape shape;
  shape.batch = 2;
  return MakeRequest(shape, &random);
}
AttendRequest Ragged() {  // three sequences of 5 and 7 rows in all
  AttendRequest request = One();
  for (int64_t offset : {0, 2, 2, 5}) request.add_cu_seqlens_q(offset);
  for (int64_t offset : {0, 0, 3, 7}) request.add_cu_seqlens_k(offset);
  return request;
}

struct BadRow {
  const char* name;
  AttendRequest (*base)();
  void (*spoil)(AttendRequest*);
  absl::StatusCode code;
  const char* field;
  const char* text;  // in the message: the values that disagree
};

void PrintTo(const BadRow& row, std::ostream* out) { *out << row.name; }

void AddUnknown(google::protobuf::Message* message, int number) {
  message->GetReflection()->MutableUnknownFields(message)->AddVarint(number, 1);
}

const BadRow kBadRows[] = {
    {"no_q", One, [](AttendRequest* r) { r->clear_q(); }, kInvalid, "q", "missing"},
    {"no_k", One, [](AttendRequest* r) { r->clear_k(); }, kInvalid, "k", "missing"},
    {"no_v", One, [](AttendRequest* r) { r->clear_v(); }, kInvalid, "v", "missing"},
    {"no_type", One, [](AttendRequest* r) { r->mutable_q()->clear_data_type(); }, kInvalid,
     "q.data_type", "missing"},
    {"unknown_type", One,
     [](AttendRequest* r) { r->mutable_k()->set_data_type(static_cast<v1::DataType>(9)); },
     kInvalid, "k.data_type", "9"},
    {"types_differ", One,
     [](AttendRequest* r) {
       Random random(3);
       *r->mutable_v() = RandomTensor(v1::DATA_TYPE_FP16, {7, 2, 8}, &random);
     },
     kInvalid, "v.data_type", "FP16"},
    {"no_data", One, [](AttendRequest* r) { r->mutable_v()->clear_inline_(); }, kInvalid,
     "v.inline", "missing"},
    {"one_byte_short", One, [](AttendRequest* r) { r->mutable_q()->mutable_inline_()->pop_back(); },
     kInvalid, "q.inline", "319 bytes came, but shape [5, 2, 8] of fp32 has 320"},
    {"one_byte_long", One,
     [](AttendRequest* r) { r->mutable_k()->mutable_inline_()->push_back('x'); }, kInvalid,
     "k.inline", "449"},
    {"negative_dimension", One, [](AttendRequest* r) { r->mutable_q()->set_shape(0, -1); },
     kInvalid, "q.shape", "-1"},
    {"two_negative_dimensions", One,
     [](AttendRequest* r) {
       r->mutable_q()->set_shape(0, -5);
       r->mutable_q()->set_shape(1, -2);
     },
     kInvalid, "q.shape", "-5"},
    {"product_past_64_bits", One,
     [](AttendRequest* r) {
       for (int i : {0, 1, 2}) r->mutable_q()->set_shape(i, int64_t{1} << 22);
     },
     kInvalid, "q.shape", "2^63"},
    {"product_wraps_to_its_bytes", One,  // 2^62 + 80 elements of 4 bytes are 320 modulo 2^64
     [](AttendRequest* r) {
       r->mutable_q()->clear_shape();
       for (int64_t d : {(int64_t{1} << 58) + 5, int64_t{2}, int64_t{8}})
         r->mutable_q()->add_shape(d);
     },
     kInvalid, "q.shape", "2^63"},
    {"overflow_beside_a_zero", One,
     [](AttendRequest* r) {
       r->mutable_q()->clear_inline_();
       r->mutable_q()->set_inline_("");
       r->mutable_q()->set_shape(0, 0);
       r->mutable_q()->set_shape(1, INT64_MAX);
     },
     kInvalid, "q.shape", "2^63"},
    {"no_shape", One, [](AttendRequest* r) { r->mutable_q()->clear_shape(); }, kInvalid, "q.inline",
     "320"},
    {"two_dimensions", One,
     [](AttendRequest* r) {
       r->mutable_q()->clear_shape();
       r->mutable_q()->add_shape(5);
       r->mutable_q()->add_shape(16);
     },
     kInvalid, "q.shape", "2 dimensions"},
    {"five_dimensions", One,
     [](AttendRequest* r) {
       r->mutable_q()->add_shape(1);
       r->mutable_q()->add_shape(1);
     },
     kInvalid, "q.shape", "5 dimensions"},
    {"k_has_other_rank", One, [](AttendRequest* r) { r->mutable_k()->add_shape(1); }, kInvalid,
     "k.shape", "4 dimensions, but q has 3"},
    {"head_dim_differs", One,
     [](AttendRequest* r) {
       r->mutable_k()->set_shape(2, 4);
       r->mutable_k()->set_shape(0, 14);
     },
     kInvalid, "k.shape", "4"},
    {"v_rows_differ", One,
     [](AttendRequest* r) {
       Random random(3);
       *r->mutable_v() = RandomTensor(v1::DATA_TYPE_FP32, {6, 2, 8}, &random);
     },
     kInvalid, "v.shape", "6"},
    {"v_heads_differ", One,
     [](AttendRequest* r) {
       Random random(3);
       *r->mutable_v() = RandomTensor(v1::DATA_TYPE_FP32, {7, 1, 8}, &random);
     },
     kInvalid, "v.shape", "1"},
    {"heads_do_not_divide", One,
     [](AttendRequest* r) {
       Random random(3);
       *r->mutable_q() = RandomTensor(v1::DATA_TYPE_FP32, {5, 3, 8}, &random);
     },
     kInvalid, "q.shape", "3"},
    {"head_dim_0", One,
     [](AttendRequest* r) {
       for (v1::Tensor* t : {r->mutable_q(), r->mutable_k()}) {
         t->set_shape(2, 0);
         t->set_inline_("");
       }
     },
     kInvalid, "q.shape", "0"},
    {"head_dim_257", One,
     [](AttendRequest* r) {
       Random random(3);
       *r->mutable_q() = RandomTensor(v1::DATA_TYPE_FP32, {5, 2, 257}, &random);
       *r->mutable_k() = RandomTensor(v1::DATA_TYPE_FP32, {7, 2, 257}, &random);
     },
     kInvalid, "q.shape", "257"},
    {"value_head_dim_257", One,
     [](AttendRequest* r) {
       Random random(3);
       *r->mutable_v() = RandomTensor(v1::DATA_TYPE_FP32, {7, 2, 257}, &random);
     },
     kInvalid, "v.shape", "257"},
    {"no_heads", One,
     [](AttendRequest* r) {
       for (v1::Tensor* t : {r->mutable_q(), r->mutable_k(), r->mutable_v()}) {
         t->set_shape(1, 0);
         t->set_inline_("");
       }
     },
     kInvalid, "q.shape", "0"},
    {"strides", One, [](AttendRequest* r) { r->mutable_q()->add_strides(1); }, kUnimplemented,
     "q.strides", "contiguous"},
    {"region", One, [](AttendRequest* r) { r->mutable_k()->mutable_region()->set_region("kv"); },
     kUnimplemented, "k.region", "region"},
    {"o_destination", One, [](AttendRequest* r) { r->mutable_o_destination(); }, kUnimplemented,
     "o_destination", "region"},
    {"lse_destination", One, [](AttendRequest* r) { r->mutable_lse_destination(); }, kUnimplemented,
     "lse_destination", "region"},
    {"long_id", One, [](AttendRequest* r) { r->set_request_id(std::string(129, 'x')); }, kInvalid,
     "request_id", "129"},
    {"id_with_newline", One, [](AttendRequest* r) { r->set_request_id("a\nb"); }, kInvalid,
     "request_id", "ASCII"},
    {"id_not_ascii", One, [](AttendRequest* r) { r->set_request_id("\xc3\xa9"); }, kInvalid,
     "request_id", "ASCII"},
    {"unknown_priority", One,
     [](AttendRequest* r) { r->set_priority(static_cast<v1::Priority>(4)); }, kInvalid, "priority",
     "4"},
    {"scale_infinite", One, [](AttendRequest* r) { r->set_softmax_scale(kInf); }, kInvalid,
     "softmax_scale", "inf"},
    {"scale_nan", One, [](AttendRequest* r) { r->set_softmax_scale(kNan); }, kInvalid,
     "softmax_scale", "nan"},
    {"softcap_negative", One, [](AttendRequest* r) { r->set_softcap(-1); }, kInvalid, "softcap",
     "-1"},
    {"softcap_infinite", One, [](AttendRequest* r) { r->set_softcap(kInf); }, kInvalid, "softcap",
     "inf"},
    {"softcap_nan", One, [](AttendRequest* r) { r->set_softcap(kNan); }, kInvalid, "softcap",
     "nan"},
    {"window_left_negative", One, [](AttendRequest* r) { r->mutable_window()->set_left(-1); },
     kInvalid, "window.left", "-1"},
    {"window_right_negative", One,
     [](AttendRequest* r) { r->mutable_window()->set_right(INT64_MIN); }, kInvalid, "window.right",
     "-9223372036854775808"},
    {"sinks_fp16", One,
     [](AttendRequest* r) {
       Random random(3);
       *r->mutable_sinks() = RandomTensor(v1::DATA_TYPE_FP16, {2}, &random);
     },
     kInvalid, "sinks.data_type", "FP16"},
    {"sinks_of_kv_heads", One,
     [](AttendRequest* r) {
       Random random(3);
       *r->mutable_sinks() = RandomTensor(v1::DATA_TYPE_FP32, {1}, &random);
     },
     kInvalid, "sinks.shape", "[1], but it must be [2]"},
    {"alibi_of_two_dimensions", One,
     [](AttendRequest* r) {
       Random random(3);
       *r->mutable_alibi_slopes() = RandomTensor(v1::DATA_TYPE_FP32, {2, 1}, &random);
     },
     kInvalid, "alibi_slopes.shape", "[2, 1]"},
    {"bias_of_other_type", One,
     [](AttendRequest* r) {
       Random random(3);
       *r->mutable_bias() = RandomTensor(v1::DATA_TYPE_BF16, {1, 1, 5, 7}, &random);
     },
     kInvalid, "bias.data_type", "BF16"},
    {"bias_over_fewer_keys", One,
     [](AttendRequest* r) {
       Random random(3);
       *r->mutable_bias() = RandomTensor(v1::DATA_TYPE_FP32, {1, 1, 5, 6}, &random);
     },
     kInvalid, "bias.shape", "[1, 1, 5, 6]"},
    {"bias_of_two_dimensions", One,
     [](AttendRequest* r) {
       Random random(3);
       *r->mutable_bias() = RandomTensor(v1::DATA_TYPE_FP32, {5, 7}, &random);
     },
     kInvalid, "bias.shape", "[5, 7]"},
    {"bias_of_three_dimensions_for_a_batch", Padded,
     [](AttendRequest* r) {
       Random random(3);
       *r->mutable_bias() = RandomTensor(v1::DATA_TYPE_FP32, {2, 5, 7}, &random);
     },
     kInvalid, "bias.shape", "[2, 5, 7]"},
    {"bias_of_three_sequences", Padded,
     [](AttendRequest* r) {
       Random random(3);
       *r->mutable_bias() = RandomTensor(v1::DATA_TYPE_FP32, {3, 1, 5, 7}, &random);
     },
     kInvalid, "bias.shape", "[3, 1, 5, 7]"},
    {"bias_for_ragged", Ragged,
     [](AttendRequest* r) {
       Random random(3);
       *r->mutable_bias() = RandomTensor(v1::DATA_TYPE_FP32, {1, 1, 5, 7}, &random);
     },
     kUnimplemented, "bias", "ragged"},
    {"batches_differ", Padded,
     [](AttendRequest* r) {
       r->mutable_k()->set_shape(0, 7);
       r->mutable_k()->set_shape(1, 2);
     },
     kInvalid, "k.shape", "7 sequences, but q has 2"},
    {"lens_of_one_sequence", One, [](AttendRequest* r) { r->add_q_lens(5); }, kInvalid, "q_lens",
     "batch"},
    {"kv_lens_of_one_sequence", One, [](AttendRequest* r) { r->add_kv_lens(5); }, kInvalid,
     "kv_lens", "batch"},
    {"too_few_lens", Padded, [](AttendRequest* r) { r->add_q_lens(5); }, kInvalid, "q_lens",
     "1 entries, but the batch has 2"},
    {"length_past_padding", Padded,
     [](AttendRequest* r) {
       r->add_kv_lens(7);
       r->add_kv_lens(8);
     },
     kInvalid, "kv_lens[1]", "8 is not in 0 to 7"},
    {"length_negative", Padded,
     [](AttendRequest* r) {
       r->add_q_lens(-1);
       r->add_q_lens(5);
     },
     kInvalid, "q_lens[0]", "-1"},
    {"offsets_of_q_alone", One, [](AttendRequest* r) { r->add_cu_seqlens_q(0); }, kInvalid,
     "cu_seqlens_k", "missing"},
    {"offsets_of_k_alone", One, [](AttendRequest* r) { r->add_cu_seqlens_k(0); }, kInvalid,
     "cu_seqlens_q", "missing"},
    {"offsets_of_a_padded_batch", Padded,
     [](AttendRequest* r) {
       r->add_cu_seqlens_q(0);
       r->add_cu_seqlens_k(0);
     },
     kInvalid, "q.shape", "3"},
    {"offsets_and_lens", Ragged, [](AttendRequest* r) { r->add_q_lens(1); }, kInvalid, "q_lens",
     "excludes"},
    {"offsets_and_kv_lens", Ragged, [](AttendRequest* r) { r->add_kv_lens(1); }, kInvalid,
     "kv_lens", "excludes"},
    {"first_offset_not_0", Ragged, [](AttendRequest* r) { r->set_cu_seqlens_q(0, 1); }, kInvalid,
     "cu_seqlens_q[0]", "1"},
    {"offsets_fall", Ragged, [](AttendRequest* r) { r->set_cu_seqlens_k(1, 4); }, kInvalid,
     "cu_seqlens_k[2]", "3 is less than 4"},
    {"last_offset_not_total", Ragged, [](AttendRequest* r) { r->set_cu_seqlens_q(3, 4); }, kInvalid,
     "cu_seqlens_q[3]", "4, but the last is the 5 rows"},
    {"offsets_differ_in_number", Ragged, [](AttendRequest* r) { r->add_cu_seqlens_k(7); }, kInvalid,
     "cu_seqlens_k", "5 entries, but cu_seqlens_q has 4"},
    {"unknown_field", One, [](AttendRequest* r) { AddUnknown(r, 99); }, kInvalid, "99", "know"},
    {"unknown_field_in_q", One, [](AttendRequest* r) { AddUnknown(r->mutable_q(), 98); }, kInvalid,
     "q.98", "know"},
    {"unknown_field_in_window", One, [](AttendRequest* r) { AddUnknown(r->mutable_window(), 97); },
     kInvalid, "window.97", "know"},
    {"unknown_field_in_region", One,
     [](AttendRequest* r) { AddUnknown(r->mutable_v()->mutable_region(), 96); }, kInvalid,
     "v.region.96", "know"},
    {"unknown_field_in_sinks", One, [](AttendRequest* r) { AddUnknown(r->mutable_sinks(), 95); },
     kInvalid, "sinks.95", "know"},
};

class BadRequestTest : public ::testing::TestWithParam<BadRow> {};

TEST_P(BadRequestTest, IsRefusedWithItsField) {
  const BadRow& row = GetParam();
  AttendRequest request = row.base();
  ASSERT_TRUE(Decode(request).ok()) << "the base is bad itself: " << Decode(request).status();
  row.spoil(&request);
  const absl::StatusOr<DecodedRequest> decoded = Decode(request);
  ASSERT_FALSE(decoded.ok());
  EXPECT_EQ(decoded.status().code(), row.code) << decoded.status();
  EXPECT_EQ(FieldOf(decoded.status()).value_or("none"), row.field) << decoded.status();
  EXPECT_THAT(std::string(decoded.status().message()), HasSubstr(row.text));
}

INSTANTIATE_TEST_SUITE_P(Rows, BadRequestTest, ::testing::ValuesIn(kBadRows),
                         [](const auto& row) { return std::string(row.param.name); });

TEST(RequestCodecTest, DefaultsOfOneSequence) {
  const absl::StatusOr<DecodedRequest> decoded = Decode(One());
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  ASSERT_EQ(decoded->tasks.size(), 1u);
  const AttentionTask& task = decoded->tasks[0];
  EXPECT_FLOAT_EQ(task.softmax_scale, 1 / std::sqrt(8.0f));
  EXPECT_EQ(task.softcap, 0);
  EXPECT_FALSE(task.mask.causal);
  EXPECT_FALSE(task.mask.window_left.has_value());
  EXPECT_FALSE(task.mask.window_right.has_value());
  EXPECT_TRUE(task.lse.absent());
  EXPECT_TRUE(task.bias.absent());
  EXPECT_TRUE(task.sinks.absent());
  EXPECT_TRUE(task.alibi_slopes.absent());
  EXPECT_EQ(task.seqlen_q, 5);
  EXPECT_EQ(task.seqlen_k, 7);
  EXPECT_EQ(decoded->priority, Priority::kNormal);
  EXPECT_EQ(decoded->query_tokens, 5);
  EXPECT_EQ(decoded->kv_tokens, 7);
  EXPECT_EQ(decoded->padding_tokens, 0);
  EXPECT_THAT(decoded->o.shape, ::testing::ElementsAre(5, 2, 8));
}

TEST(RequestCodecTest, PresenceIsNotZero) {
  AttendRequest request = One();
  request.set_softmax_scale(0);
  request.mutable_window()->set_left(0);
  const absl::StatusOr<DecodedRequest> decoded = Decode(request);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->tasks[0].softmax_scale, 0);
  EXPECT_EQ(decoded->tasks[0].mask.window_left, std::optional<int64_t>(0));
  EXPECT_FALSE(decoded->tasks[0].mask.window_right.has_value());
}

TEST(RequestCodecTest, LargestWindowIsValid) {
  AttendRequest request = One();
  request.mutable_window()->set_left(INT64_MAX);
  request.mutable_window()->set_right(INT64_MAX);
  EXPECT_TRUE(Decode(request).ok());
}

TEST(RequestCodecTest, RequestIdOf128Characters) {
  AttendRequest request = One();
  request.set_request_id(std::string(128, '~'));
  EXPECT_TRUE(Decode(request).ok());
}

TEST(RequestCodecTest, RaggedTasksPointIntoSharedTensors) {
  AttendRequest request = Ragged();
  request.set_return_lse(true);
  absl::StatusOr<DecodedRequest> decoded = Decode(request);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  // The middle sequence has no query row: nothing to compute for it.
  ASSERT_EQ(decoded->tasks.size(), 2u);
  EXPECT_EQ(decoded->sequences, 3);
  std::vector<std::byte> staging(decoded->staging_bytes);
  PlaceTasks(&*decoded, staging.data(), MemoryKind::kPinned);
  const auto offset = [&](const void* p) {
    return static_cast<const std::byte*>(p) - staging.data();
  };
  const auto [first, last] = std::pair(decoded->tasks[0], decoded->tasks[1]);
  EXPECT_EQ(first.q.rows, 2);
  EXPECT_EQ(first.k.rows, 0);
  EXPECT_EQ(last.q.rows, 3);
  EXPECT_EQ(last.k.rows, 4);
  EXPECT_EQ(offset(last.q.data) - offset(first.q.data), 2 * 2 * 8 * 4);
  EXPECT_EQ(offset(last.k.data) - offset(first.k.data), 3 * 2 * 8 * 4);
  EXPECT_EQ(offset(last.o.data) - offset(first.o.data), 2 * 2 * 8 * 4);
  EXPECT_EQ(offset(last.lse.data) - offset(first.lse.data), 2 * 4);
  EXPECT_EQ(first.lse.head_stride, 5);
  EXPECT_EQ(last.q.memory, MemoryKind::kPinned);
  EXPECT_THAT(decoded->lse.shape, ::testing::ElementsAre(2, 5));
}

TEST(RequestCodecTest, EmptySequencesNeedNoTask) {
  for (int64_t batch : {0, 3}) {
    Random random(4);
    RequestShape shape;
    shape.batch = batch;
    shape.rows_q = 0;
    const absl::StatusOr<DecodedRequest> decoded = Decode(MakeRequest(shape, &random));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_TRUE(decoded->tasks.empty());
    EXPECT_EQ(decoded->o.bytes, 0u);
  }
}

TEST(RequestCodecTest, NoKeysIsAnAnswer) {
  Random random(4);
  RequestShape shape;
  shape.rows_k = 0;
  const absl::StatusOr<DecodedRequest> decoded = Decode(MakeRequest(shape, &random));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->tasks.size(), 1u);
}

TEST(RequestCodecTest, BatchOfNoSequences) {
  AttendRequest request = Padded();
  for (v1::Tensor* tensor : {request.mutable_q(), request.mutable_k(), request.mutable_v()}) {
    tensor->set_shape(0, 0);
    tensor->set_inline_("");
  }
  const absl::StatusOr<DecodedRequest> decoded = Decode(request);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_TRUE(decoded->tasks.empty());
  request.mutable_k()->set_shape(3, 4);  // and is still judged
  EXPECT_FALSE(Decode(request).ok());
}

TEST(RequestCodecTest, SequencesAreLimitedAndPaidFor) {
  AttendRequest request = One();
  for (v1::Tensor* tensor : {request.mutable_q(), request.mutable_k(), request.mutable_v()}) {
    tensor->set_shape(0, 0);
    tensor->set_inline_("");
  }
  for (int i = 0; i <= 1000; ++i) {
    request.add_cu_seqlens_q(0);
    request.add_cu_seqlens_k(0);
  }
  CodecLimits limits;
  limits.max_sequences = 1000;
  absl::StatusOr<DecodedRequest> decoded = Decode(request, limits);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_GE(decoded->staging_bytes, 1000 * sizeof(AttentionTask));
  limits.max_sequences = 999;
  decoded = Decode(request, limits);
  ASSERT_FALSE(decoded.ok());
  EXPECT_EQ(FieldOf(decoded.status()), "cu_seqlens_q");
  EXPECT_EQ(ReasonOf(decoded.status()), "TOO_LARGE");
}

TEST(RequestCodecTest, HeaderIsLimited) {
  AttendRequest request = One();
  for (int i = 0; i < 2000; ++i) request.add_q_lens(1);
  CodecLimits limits;
  limits.max_header_bytes = 1000;
  const absl::StatusOr<DecodedRequest> decoded = Decode(request, limits);
  EXPECT_EQ(decoded.status().code(), kInvalid);
  EXPECT_EQ(ReasonOf(decoded.status()), "TOO_LARGE");
}

TEST(RequestCodecTest, BiasBroadcasts) {
  Random random(4);
  const struct {
    std::vector<int64_t> shape;
    int64_t head_stride, row_stride, sequence_bytes;
  } rows[] = {{{2, 2, 5, 7}, 35, 7, 280},
              {{1, 2, 5, 7}, 35, 7, 0},
              {{2, 1, 5, 7}, 0, 7, 140},
              {{2, 2, 1, 7}, 7, 0, 56},
              {{1, 1, 1, 7}, 0, 0, 0}};
  for (const auto& row : rows) {
    AttendRequest request = Padded();
    *request.mutable_bias() = RandomTensor(v1::DATA_TYPE_FP32, row.shape, &random);
    const absl::StatusOr<DecodedRequest> decoded = Decode(request);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    const BiasView &first = decoded->tasks[0].bias, &second = decoded->tasks[1].bias;
    EXPECT_EQ(first.head_stride, row.head_stride);
    EXPECT_EQ(first.row_stride, row.row_stride);
    EXPECT_EQ(static_cast<const char*>(second.data) - static_cast<const char*>(first.data),
              row.sequence_bytes);
  }
}

}  // namespace
}  // namespace attend
