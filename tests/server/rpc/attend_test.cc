// Attend, the unary call, end to end in one process.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "grpcpp/generic/generic_stub.h"
#include "kernels/errors.h"
#include "kernels/reference/reference.h"
#include "tests/server/rpc/attend_fixture.h"
#include "tests/testing/server_fixture.h"

namespace attend {
namespace {

using testing::Answers;
using testing::AttendTest;
using testing::Call;
using testing::CallResult;
using testing::Eventually;
using testing::InfoOf;
using testing::MakeRequest;
using testing::MetricOf;
using testing::Random;
using testing::RandomTensor;
using testing::RequestShape;
using testing::ServerFixture;

TEST_F(AttendTest, AnswersOneSequence) {
  for (const v1::DataType type : {v1::DATA_TYPE_FP32, v1::DATA_TYPE_FP16, v1::DATA_TYPE_BF16}) {
    RequestShape shape;
    shape.data_type = type;
    shape.heads_q = 4;
    shape.head_dim_v = 5;
    v1::AttendRequest request = MakeRequest(shape, &random_);
    request.set_return_lse(true);
    const CallResult result = Call(stub_.get(), request);
    ASSERT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_TRUE(Answers(request, result.reply));
    EXPECT_EQ(result.reply.stats().backend(), "fake");
    EXPECT_EQ(result.reply.stats().batch_requests(), 1);
    EXPECT_GT(result.reply.stats().total_seconds(), 0);
  }
  EXPECT_TRUE(BackToWhereItWas());
}

TEST_F(AttendTest, EveryOptionReachesTheDevice) {
  using Set = void (*)(v1::AttendRequest*, Random*);
  const Set options[] = {
      [](v1::AttendRequest* r, Random*) { r->set_causal(true); },
      [](v1::AttendRequest* r, Random*) { r->mutable_window()->set_left(1); },
      [](v1::AttendRequest* r, Random*) { r->mutable_window()->set_right(0); },
      [](v1::AttendRequest* r, Random*) { r->set_softmax_scale(2); },
      [](v1::AttendRequest* r, Random*) { r->set_softmax_scale(0); },
      [](v1::AttendRequest* r, Random*) { r->set_softcap(0.3f); },
      [](v1::AttendRequest* r, Random* random) {
        *r->mutable_bias() = RandomTensor(v1::DATA_TYPE_FP32, {2, 5, 7}, random);
      },
      [](v1::AttendRequest* r, Random* random) {
        *r->mutable_alibi_slopes() = RandomTensor(v1::DATA_TYPE_FP32, {2}, random);
      },
      [](v1::AttendRequest* r, Random* random) {
        *r->mutable_sinks() = RandomTensor(v1::DATA_TYPE_FP32, {2}, random);
      },
  };
  const v1::AttendRequest plain = Small();
  const CallResult without = Call(stub_.get(), plain);
  ASSERT_TRUE(without.status.ok());
  for (size_t i = 0; i < std::size(options); ++i) {
    v1::AttendRequest request = plain;
    options[i](&request, &random_);
    const CallResult with = Call(stub_.get(), request);
    ASSERT_TRUE(with.status.ok()) << i << ": " << with.status.error_message();
    EXPECT_TRUE(Answers(request, with.reply)) << i;
    EXPECT_NE(with.reply.o().inline_(), without.reply.o().inline_())
        << "option " << i << " ignored";
  }
}

TEST_F(AttendTest, PaddedAndRaggedBatches) {
  RequestShape shape;
  shape.batch = 3;
  v1::AttendRequest padded = MakeRequest(shape, &random_);
  for (int64_t length : {5, 0, 2}) padded.add_q_lens(length);
  for (int64_t length : {7, 3, 0}) padded.add_kv_lens(length);
  padded.set_return_lse(true);
  CallResult result = Call(stub_.get(), padded);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_TRUE(Answers(padded, result.reply));

  v1::AttendRequest ragged = Small();
  for (int64_t offset : {0, 1, 1, 5}) ragged.add_cu_seqlens_q(offset);
  for (int64_t offset : {0, 4, 6, 7}) ragged.add_cu_seqlens_k(offset);
  ragged.set_return_lse(true);
  result = Call(stub_.get(), ragged);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_TRUE(Answers(ragged, result.reply));
  EXPECT_EQ(MetricOf(http(), "attend_padding_tokens_total"), 8);
  EXPECT_EQ(MetricOf(http(), "attend_sequences_total"), 6);
}

TEST_F(AttendTest, LargeTensorsPassThroughTheCopyPool) {
  RequestShape shape;
  shape.rows_q = 3;
  shape.rows_k = 9000;
  shape.heads_q = shape.heads_k = 8;
  shape.head_dim = shape.head_dim_v = 16;  // k and v: 4.6 MB each
  const v1::AttendRequest request = MakeRequest(shape, &random_);
  const CallResult result = Call(stub_.get(), request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_TRUE(Answers(request, result.reply));
}

TEST_F(AttendTest, NoQueryRowsIsAnsweredAtOnce) {
  fixture_->device().Hold();  // the device is not asked
  RequestShape shape;
  shape.rows_q = 0;
  v1::AttendRequest request = MakeRequest(shape, &random_);
  request.set_return_lse(true);
  const CallResult result = Call(stub_.get(), request);
  ASSERT_TRUE(result.status.ok()) << result.status.error_message();
  EXPECT_TRUE(Answers(request, result.reply));
}

TEST_F(AttendTest, RequestIds) {
  v1::AttendRequest request = Small();
  CallResult result = Call(stub_.get(), request);
  EXPECT_EQ(result.request_id.size(), 16u);
  EXPECT_EQ(result.reply.request_id(), result.request_id);

  result = Call(stub_.get(), request,
                [](grpc::ClientContext* c) { c->AddMetadata("x-request-id", "from-header"); });
  EXPECT_EQ(result.request_id, "from-header");
  EXPECT_EQ(result.reply.request_id(), "from-header");

  request.set_request_id("from-field");
  result = Call(stub_.get(), request,
                [](grpc::ClientContext* c) { c->AddMetadata("x-request-id", "from-header"); });
  EXPECT_EQ(result.reply.request_id(), "from-field");

  request.mutable_q()->clear_shape();  // and in errors
  result = Call(stub_.get(), request);
  EXPECT_EQ(result.request_id, "from-field");
  EXPECT_EQ(InfoOf(result.status).request_id, "from-field");

  request.set_request_id("bad\x01id");
  result = Call(stub_.get(), request);
  EXPECT_EQ(InfoOf(result.status).field, "request_id");
}

TEST_F(AttendTest, BadRequestsNameTheirFieldAndHarmNobody) {
  v1::AttendRequest bad = Small();
  bad.mutable_v()->mutable_inline_()->pop_back();
  CallResult result = Call(stub_.get(), bad);
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(InfoOf(result.status).field, "v.inline");
  EXPECT_EQ(InfoOf(result.status).reason, "INVALID_ARGUMENT");
  EXPECT_FALSE(result.pushback.has_value());
  EXPECT_TRUE(BackToWhereItWas());
  const v1::AttendRequest good = Small();
  result = Call(stub_.get(), good);
  EXPECT_TRUE(result.status.ok() && Answers(good, result.reply));
  EXPECT_EQ(MetricOf(http(), R"(attend_rejected_total{reason="invalid"})"), 1);
  EXPECT_EQ(MetricOf(http(), R"(attend_requests_total{code="INVALID_ARGUMENT",method="Attend"})"),
            1);
  EXPECT_EQ(MetricOf(http(), R"(attend_requests_total{code="OK",method="Attend"})"), 1);
}

TEST_F(AttendTest, MessageThatIsNoMessage) {
  grpc::GenericStub generic(fixture_->Connect());
  for (const std::string& bytes : {std::string("\xff\xff\xff\xff\xff\xff"), std::string("\x0a\x7f"),
                                   std::string("\x0b"), std::string(1, '\0')}) {
    grpc::Slice slice(bytes);
    grpc::ByteBuffer request(&slice, 1), response;
    grpc::ClientContext context;
    std::promise<grpc::Status> ended;
    generic.UnaryCall(&context, "/attend.v1.AttentionService/Attend", grpc::StubOptions(), &request,
                      &response, [&](grpc::Status s) { ended.set_value(std::move(s)); });
    const grpc::Status status = ended.get_future().get();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
    EXPECT_EQ(InfoOf(status).reason, "MALFORMED");
  }
}

TEST_F(AttendTest, OptionThatTheBackendLacks) {
  fixture_->device().features = FeatureSet({Feature::kFp32, Feature::kLse});
  v1::AttendRequest request = Small();
  request.set_causal(true);
  const CallResult result = Call(stub_.get(), request);
  EXPECT_EQ(result.status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_EQ(InfoOf(result.status).field, "causal");
}

TEST_F(AttendTest, SameBitsWhoeverSharesTheBatch) {
  RequestShape shape;
  shape.data_type = v1::DATA_TYPE_BF16;
  shape.rows_q = 9, shape.rows_k = 33;
  const v1::AttendRequest request = MakeRequest(shape, &random_);
  const std::string alone = Call(stub_.get(), request).reply.o().inline_();
  fixture_->device().Hold();
  std::vector<std::future<CallResult>> calls;
  calls.push_back(std::async(std::launch::async, [&] { return Call(stub_.get(), request); }));
  fixture_->device().AwaitRunning(1);
  for (int i = 0; i < 8; ++i) {
    RequestShape other = shape;
    other.rows_q = 1 + i;
    calls.push_back(std::async(std::launch::async,
                               [&, mate = i % 2 == 0 ? request : MakeRequest(other, &random_)] {
                                 return Call(stub_.get(), mate);
                               }));
    ASSERT_TRUE(
        Eventually([&] { return fixture_->server().engines().stats().queued_requests == i + 1; }));
  }
  fixture_->device().Release();
  int shared = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    const CallResult result = calls[i].get();
    ASSERT_TRUE(result.status.ok());
    if (result.reply.stats().batch_requests() > 1) ++shared;
    if (i == 0 || i % 2 == 1) {
      EXPECT_EQ(result.reply.o().inline_(), alone) << i;
    }
  }
  EXPECT_GT(shared, 1);
}

TEST_F(AttendTest, ManyDevicesShareTheWork) {
  Restart(ServerFixture::Options(), 2);
  const v1::AttendRequest request = Small();
  for (int i = 0; i < 2; ++i) fixture_->device(i).Hold();
  std::vector<std::future<CallResult>> calls;
  for (int i = 0; i < 2; ++i) {
    calls.push_back(std::async(std::launch::async, [&] { return Call(stub_.get(), request); }));
  }
  for (int i = 0; i < 2; ++i) fixture_->device(i).AwaitRunning(1);  // one each
  for (int i = 0; i < 2; ++i) fixture_->device(i).Release();
  for (auto& call : calls) EXPECT_TRUE(call.get().status.ok());
}

}  // namespace
}  // namespace attend
