// The library's inner parts: when to retry, what errors say, wire bytes against the generated
// classes, buffers.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <thread>

#include <google/protobuf/stubs/logging.h>

#include "attend/internal/buffer_pool.h"
#include "attend/internal/decode.h"
#include "attend/internal/encode.h"
#include "attend/internal/retry.h"
#include "attend/internal/status_details.h"
#include "attend/v1/attention.pb.h"
#include "tests/client/fake_service.h"
#include "tests/client/values.h"
#include "tests/testing/random.h"

namespace attend::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using ::testing::HasSubstr;

AttemptError Error(absl::StatusCode code, int hint_ms = -1) {
  AttemptError error;
  error.code = code;
  if (hint_ms >= 0) error.details.retry_after = milliseconds(hint_ms);
  return error;
}

constexpr nanoseconds kLong = std::chrono::hours(1);

TEST(RetryTest, OnlyWhatMayPassLater) {
  const RetryOptions options;
  for (int code = 1; code <= 16; ++code) {
    const auto status = static_cast<absl::StatusCode>(code);
    EXPECT_EQ(RetryDelay(options, Error(status), 1, kLong, 0).has_value(),
              status == absl::StatusCode::kUnavailable);
    EXPECT_EQ(
        RetryDelay(options, Error(status, 5), 1, kLong, 0).has_value(),
        status == absl::StatusCode::kUnavailable || status == absl::StatusCode::kResourceExhausted);
    AttemptError forbidden = Error(status, 5);
    forbidden.retry_forbidden = true;
    EXPECT_FALSE(RetryDelay(options, forbidden, 1, kLong, 0).has_value());
  }
}

TEST(RetryTest, BacksOffByPowersWithJitter) {
  RetryOptions options;
  options.max_attempts = 100;
  options.initial_backoff = milliseconds(40);
  options.max_backoff = milliseconds(300);
  const AttemptError error = Error(absl::StatusCode::kUnavailable);
  const int64_t whole[] = {40, 80, 160, 300, 300, 300};
  for (int attempts = 1; attempts <= 6; ++attempts) {
    const double full = static_cast<double>(whole[attempts - 1]) * 1e6;
    EXPECT_NEAR(static_cast<double>(RetryDelay(options, error, attempts, kLong, 0)->count()),
                full / 2, 2);
    EXPECT_NEAR(static_cast<double>(RetryDelay(options, error, attempts, kLong, 0.999999)->count()),
                full, full * 1e-5);
  }
}

TEST(RetryTest, AHintIsAFloor) {
  const AttemptError error = Error(absl::StatusCode::kResourceExhausted, 80);
  EXPECT_EQ(RetryDelay({}, error, 3, kLong, 0), milliseconds(80));
  EXPECT_EQ(RetryDelay({}, error, 3, kLong, 0.5), milliseconds(90));
  EXPECT_EQ(RetryDelay({}, Error(absl::StatusCode::kUnavailable, 0), 1, kLong, 0.5),
            milliseconds(0));
}

TEST(RetryTest, BoundedByAttemptsAndDeadline) {
  RetryOptions options;
  options.max_attempts = 3;
  const AttemptError error = Error(absl::StatusCode::kUnavailable, 80);
  EXPECT_TRUE(RetryDelay(options, error, 2, kLong, 0).has_value());
  EXPECT_FALSE(RetryDelay(options, error, 3, kLong, 0).has_value());
  EXPECT_FALSE(RetryDelay(options, error, 1, milliseconds(80), 0).has_value());
  EXPECT_TRUE(RetryDelay(options, error, 1, milliseconds(81), 0).has_value());
  EXPECT_FALSE(RetryDelay(options, error, 1, milliseconds(-5), 0).has_value());
}

TEST(StatusDetailsTest, ReadsDetails) {
  const grpc::Status status =
      RichError(grpc::StatusCode::INVALID_ARGUMENT, "m", "REASON", "k.shape", 1'234, "id");
  const AttemptError error = ReadError(3, "m", status.error_details(), "");
  EXPECT_EQ(error.code, absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(error.details.reason, "REASON");
  EXPECT_EQ(error.details.field, "k.shape");
  EXPECT_EQ(error.details.request_id, "id");
  EXPECT_EQ(error.details.retry_after, milliseconds(1234));
  // And through an absl::Status to the caller.
  const ErrorDetails details = DetailsOf(MakeStatus(error.code, error.message, error.details));
  EXPECT_EQ(details.reason, "REASON");
  EXPECT_EQ(details.retry_after, milliseconds(1234));
  EXPECT_EQ(DetailsOf(absl::OkStatus()).reason, "");
  EXPECT_EQ(DetailsOf(absl::InternalError("x")).attempts, 0);
}

TEST(StatusDetailsTest, SurvivesGarbage) {
  const google::protobuf::LogSilencer silencer;  // of text that is no UTF-8
  testing::Random random(testing::MixSeed(testing::TestSeed(), "garbage"));
  std::string good =
      RichError(grpc::StatusCode::UNAVAILABLE, "m", "R", "f", 5, "id").error_details();
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = good;
    bytes[random.Next() % bytes.size()] = static_cast<char>(random.Next());
    if (i % 3 == 0) bytes.resize(random.Next() % bytes.size());
    const AttemptError error = ReadError(14, "m", bytes, "");
    EXPECT_EQ(error.code, absl::StatusCode::kUnavailable);
    EXPECT_GE(error.details.retry_after.value_or(milliseconds(0)).count(), 0);
  }
  EXPECT_EQ(ReadError(0, "", "", "").code, absl::StatusCode::kUnknown);
  EXPECT_EQ(ReadError(99, "", "", "").code, absl::StatusCode::kUnknown);
  EXPECT_EQ(ReadError(-1, "", "", "").code, absl::StatusCode::kUnknown);
}

TEST(StatusDetailsTest, Pushback) {
  EXPECT_EQ(ReadError(14, "", "", "250").details.retry_after, milliseconds(250));
  EXPECT_TRUE(ReadError(14, "", "", "-1").retry_forbidden);
  const AttemptError garbage = ReadError(14, "", "", "soon");
  EXPECT_FALSE(garbage.retry_forbidden);
  EXPECT_FALSE(garbage.details.retry_after.has_value());
}

TEST(StatusDetailsTest, TellsTooLargeFromTooBusy) {
  const AttemptError large = ReadError(8, "Received message larger than max (9 vs. 4)", "", "5");
  EXPECT_EQ(large.details.reason, "MESSAGE_TOO_LARGE");
  EXPECT_TRUE(large.retry_forbidden);
  EXPECT_THAT(large.message, HasSubstr("(9 vs. 4)"));
  EXPECT_FALSE(ReadError(8, "the queue is full", "", "5").retry_forbidden);
}

TEST(StatusDetailsTest, CallResetForWantOfMemoryMayBeTriedAgain) {
  const AttemptError reset = ReadError(8, "Received RST_STREAM with error code 11", "", "");
  EXPECT_EQ(reset.details.reason, "RECEIVE_MEMORY");
  EXPECT_FALSE(reset.retry_forbidden);
  EXPECT_TRUE(reset.details.retry_after.has_value());
}

std::string Bytes(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

// The hand-made bytes are those that the generated class writes of the same request.
TEST(EncodeTest, ByteForByteWhatTheGeneratedClassWrites) {
  const Values values(3, 2, 5);
  const std::vector<float> heads = {0.5f, -0.25f};
  AttendOptions options;
  options.scale = 0.0f;
  options.causal = true;
  options.window_left = 0;
  options.softcap = 2.0f;
  options.return_lse = true;
  options.q_lens = {3};
  options.kv_lens = {2};
  options.cu_seqlens_q = {0, 3};
  options.cu_seqlens_k = {0, 2};
  options.alibi_slopes = TensorRef::Fp32(heads, {2});
  options.sinks = TensorRef::Fp32(heads, {2});
  options.bias = TensorRef::Fp32(heads, {1, 2});
  options.priority = Priority::kHigh;

  v1::AttendRequest expected;
  expected.set_request_id("the-id");
  expected.set_priority(v1::PRIORITY_HIGH);
  expected.set_softmax_scale(0.0f);
  expected.set_causal(true);
  expected.mutable_window()->set_left(0);
  expected.set_softcap(2.0f);
  expected.set_return_lse(true);
  expected.add_q_lens(3);
  expected.add_kv_lens(2);
  for (const int64_t n : {0, 3}) expected.add_cu_seqlens_q(n);
  for (const int64_t n : {0, 2}) expected.add_cu_seqlens_k(n);
  const auto fill = [](v1::Tensor* tensor, v1::DataType type, const TensorRef& ref) {
    tensor->set_data_type(type);
    for (const int64_t dimension : ref.shape) tensor->add_shape(dimension);
    tensor->set_inline_(std::string(static_cast<const char*>(ref.data), ref.size_bytes));
  };
  const AttendInputs inputs = values.inputs();
  fill(expected.mutable_alibi_slopes(), v1::DATA_TYPE_FP32, *options.alibi_slopes);
  fill(expected.mutable_sinks(), v1::DATA_TYPE_FP32, *options.sinks);
  fill(expected.mutable_bias(), v1::DATA_TYPE_FP32, *options.bias);
  fill(expected.mutable_q(), v1::DATA_TYPE_FP16, inputs.q);
  fill(expected.mutable_k(), v1::DATA_TYPE_FP16, inputs.k);
  fill(expected.mutable_v(), v1::DATA_TYPE_FP16, inputs.v);

  const auto pool = std::make_shared<BufferPool>(1 << 20);
  const absl::StatusOr<EncodedRequest> encoded = EncodedRequest::Make(inputs, options, "the-id");
  ASSERT_TRUE(encoded.ok()) << encoded.status();
  EXPECT_EQ(Bytes(*encoded->Message(*pool, std::nullopt)), expected.SerializeAsString());
  EXPECT_EQ(encoded->size_bytes(), expected.ByteSizeLong());

  v1::AttendStreamRequest parsed;
  ASSERT_TRUE(
      parsed.ParseFromString(Bytes(*encoded->Message(*pool, EncodedRequest::Envelope{77, 1.5}))));
  EXPECT_EQ(parsed.id(), 77u);
  EXPECT_EQ(parsed.timeout_seconds(), 1.5);
  EXPECT_EQ(parsed.attend().SerializeAsString(), expected.SerializeAsString());
  ASSERT_TRUE(parsed.ParseFromString(Bytes(CancelMessage(78))));
  EXPECT_EQ(parsed.id(), 78u);
  EXPECT_TRUE(parsed.has_cancel());
}

grpc::ByteBuffer Buffer(const std::string& bytes, size_t cut) {
  const grpc::Slice slices[] = {grpc::Slice(bytes.substr(0, cut)), grpc::Slice(bytes.substr(cut))};
  return grpc::ByteBuffer(slices, 2);
}

v1::AttendResponse GoodResponse() {
  v1::AttendResponse response;
  response.set_request_id("r");
  response.mutable_stats()->set_kernel_seconds(0.5);
  v1::Tensor* const o = response.mutable_o();
  o->set_data_type(v1::DATA_TYPE_BF16);
  for (const int64_t dimension : {2, 1, 3}) o->add_shape(dimension);
  o->set_inline_("abcdefghijkl");
  return response;
}

// However the bytes are cut into slices, and with fields that a newer server might add.
TEST(DecodeTest, ReadsEveryCut) {
  std::string bytes = GoodResponse().SerializeAsString();
  bytes += std::string("\xf2\x06\x03new", 6);  // field 110
  for (size_t cut = 0; cut <= bytes.size(); ++cut) {
    grpc::ByteBuffer buffer = Buffer(bytes, cut);
    const absl::StatusOr<AttendResult> result = DecodeResponse(&buffer, {});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->o.dtype(), DataType::kBf16);
    EXPECT_EQ(result->o.shape(), (Shape{2, 1, 3}));
    EXPECT_EQ(std::memcmp(result->o.bytes().data(), "abcdefghijkl", 12), 0);
    EXPECT_EQ(result->stats.kernel_seconds, 0.5);
  }
}

TEST(DecodeTest, RefusesWhatDoesNotAddUp) {
  const auto refused = [](const std::function<void(v1::AttendResponse*)>& change) {
    v1::AttendResponse response = GoodResponse();
    change(&response);
    grpc::ByteBuffer buffer = Buffer(response.SerializeAsString(), 3);
    return DecodeResponse(&buffer, {}).status().code() == absl::StatusCode::kInternal;
  };
  EXPECT_FALSE(refused([](v1::AttendResponse*) {}));
  EXPECT_TRUE(refused([](v1::AttendResponse* r) { r->clear_o(); }));
  EXPECT_TRUE(refused([](v1::AttendResponse* r) { r->mutable_o()->add_shape(2); }));
  EXPECT_TRUE(refused([](v1::AttendResponse* r) { r->mutable_o()->set_shape(0, -2); }));
  EXPECT_TRUE(refused([](v1::AttendResponse* r) { r->mutable_o()->clear_inline_(); }));
  EXPECT_TRUE(refused([](v1::AttendResponse* r) { r->mutable_o()->clear_data_type(); }));
  EXPECT_TRUE(refused([](v1::AttendResponse* r) { r->mutable_o()->mutable_region(); }));
  EXPECT_TRUE(refused([](v1::AttendResponse* r) {
    r->mutable_o()->clear_shape();
    for (int i = 0; i < 3; ++i) r->mutable_o()->add_shape(int64_t{1} << 32);
  }));
}

TEST(DecodeTest, SurvivesCutsAndFlips) {
  const google::protobuf::LogSilencer silencer;
  testing::Random random(testing::MixSeed(testing::TestSeed(), "cuts and flips"));
  v1::AttendStreamResponse message;
  message.set_id(9);
  *message.mutable_attend() = GoodResponse();
  const std::string good = message.SerializeAsString();
  const Destinations nowhere;
  for (int i = 0; i < 20'000; ++i) {
    std::string bytes = good;
    for (int flips = static_cast<int>(random.Next() % 3); flips >= 0; --flips) {
      bytes[random.Next() % bytes.size()] = static_cast<char>(random.Next());
    }
    if (i % 2 == 0) bytes.resize(random.Next() % bytes.size());
    grpc::ByteBuffer buffer = Buffer(bytes, random.Next() % (bytes.size() + 1));
    const auto reply = DecodeStreamReply(&buffer, [&](uint64_t) { return &nowhere; });
    EXPECT_TRUE(!reply.ok() || !reply->result.ok() ||
                reply->result->o.bytes().size() <= good.size());
  }
}

TEST(BufferPoolTest, UsesBuffersAgainUpToItsLimit) {
  const auto pool = std::make_shared<BufferPool>(size_t{1} << 20);
  BufferPool::Buffer first = pool->Take(300'000);
  ASSERT_GE(first.capacity, 300'000u);
  EXPECT_LE(first.capacity, 300'000u * 9 / 8 + 1);
  const std::byte* const memory = first.data.get();
  pool->Give(std::move(first));
  EXPECT_GT(pool->idle_bytes(), 0u);
  EXPECT_EQ(pool->Take(299'000).data.get(), memory);
  EXPECT_EQ(pool->idle_bytes(), 0u);
  for (int i = 0; i < 10; ++i) pool->Give(BufferPool(0).Take(300'000));
  EXPECT_LE(pool->idle_bytes(), size_t{1} << 20);
  EXPECT_GE(pool->idle_bytes(), 600'000u);
  pool->Give(BufferPool(0).Take(size_t{2} << 20));  // past the limit by itself
  EXPECT_LE(pool->idle_bytes(), size_t{1} << 20);
}

TEST(BufferPoolTest, SlicesOutliveThePoolsOwner) {
  auto pool = std::make_shared<BufferPool>(size_t{1} << 20);
  BufferPool::Buffer buffer = pool->Take(100'000);
  std::memset(buffer.data.get(), 7, 100'000);
  {
    const grpc::Slice slice = pool->ToSlice(std::move(buffer), 100'000);
    const std::weak_ptr<BufferPool> weak = pool;
    pool.reset();
    EXPECT_FALSE(weak.expired());
    EXPECT_EQ(slice.size(), 100'000u);
    EXPECT_EQ(slice.begin()[99'999], 7);
  }
}

}  // namespace
}  // namespace attend::client
