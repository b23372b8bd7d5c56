// Requests that the codec refuses: a row for each way to be wrong.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <ostream>
#include <string>

#include "kernels/errors.h"
#include "server/rpc/request_codec.h"
#include "tests/server/rpc/decode_request.h"
#include "tests/testing/attend_request.h"

namespace attend {
namespace {

using testing::Decode;
using ::testing::HasSubstr;
using testing::One;
using testing::Padded;
using testing::Ragged;
using testing::Random;
using testing::RandomTensor;
using v1::AttendRequest;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

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

}  // namespace
}  // namespace attend
