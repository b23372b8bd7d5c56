// AttendStream: many requests on one stream.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <map>
#include <set>
#include <thread>

#include "tests/testing/server_fixture.h"

namespace attend {
namespace {

using testing::Answers;
using testing::Eventually;
using testing::InfoOf;
using testing::MakeRequest;
using testing::Random;
using testing::ServerFixture;

using Stream = grpc::ClientReaderWriter<v1::AttendStreamRequest, v1::AttendStreamResponse>;

class StreamTest : public ::testing::Test {
 protected:
  void SetUp() override { Open(); }
  void TearDown() override {
    fixture_->device().Release();
    context_->TryCancel();
  }

  void Open() {
    context_ = std::make_unique<grpc::ClientContext>();
    stream_ = stub_->AttendStream(context_.get());
  }
  v1::AttendRequest Small() { return MakeRequest({}, &random_); }
  bool Send(uint64_t id, const v1::AttendRequest& request, double timeout = 0) {
    v1::AttendStreamRequest message;
    message.set_id(id);
    *message.mutable_attend() = request;
    if (timeout != 0) message.set_timeout_seconds(timeout);
    return stream_->Write(message);
  }
  bool Cancel(uint64_t id) {
    v1::AttendStreamRequest message;
    message.set_id(id);
    message.mutable_cancel();
    return stream_->Write(message);
  }
  v1::AttendStreamResponse Receive() {
    v1::AttendStreamResponse reply;
    EXPECT_TRUE(stream_->Read(&reply)) << "the stream ended";
    return reply;
  }
  // Nothing more to say; how the stream ended.
  grpc::Status Close() {
    stream_->WritesDone();
    v1::AttendStreamResponse reply;
    while (stream_->Read(&reply)) ADD_FAILURE() << "one more reply: " << reply.id();
    return stream_->Finish();
  }
  EngineStats stats() { return fixture_->server().engines().stats(); }

  Random random_{testing::MixSeed(testing::TestSeed(), "stream")};
  std::optional<ServerFixture> fixture_{std::in_place};
  std::unique_ptr<v1::AttentionService::Stub> stub_ = fixture_->Stub();
  std::unique_ptr<grpc::ClientContext> context_;
  std::unique_ptr<Stream> stream_;
};

TEST_F(StreamTest, ManyInFlightEachAnsweredOnce) {
  std::map<uint64_t, v1::AttendRequest> sent;
  fixture_->device().Hold();
  for (uint64_t id = 0; id < 50; ++id) {
    testing::RequestShape shape;
    shape.rows_q = 1 + static_cast<int64_t>(id % 7);
    sent[id * 3] = MakeRequest(shape, &random_);
    ASSERT_TRUE(Send(id * 3, sent[id * 3]));
  }
  ASSERT_TRUE(Eventually([&] { return stats().in_flight_requests == 50; }));
  fixture_->device().Release();
  while (!sent.empty()) {
    const v1::AttendStreamResponse reply = Receive();
    const auto found = sent.find(reply.id());
    ASSERT_NE(found, sent.end()) << "id " << reply.id() << " twice, or never sent";
    ASSERT_TRUE(reply.has_attend()) << reply.error().message();
    EXPECT_TRUE(Answers(found->second, reply.attend()));
    sent.erase(found);
  }
  EXPECT_TRUE(Close().ok());
}

TEST_F(StreamTest, LargeRequests) {
  testing::RequestShape shape;
  shape.rows_q = 2, shape.rows_k = 20000;
  std::vector<v1::AttendRequest> sent;
  for (uint64_t id = 0; id < 6; ++id) {
    sent.push_back(MakeRequest(shape, &random_));
    ASSERT_TRUE(Send(id, sent.back()));
  }
  for (size_t i = 0; i < sent.size(); ++i) {
    const v1::AttendStreamResponse reply = Receive();
    ASSERT_TRUE(reply.has_attend()) << reply.error().message();
    EXPECT_TRUE(Answers(sent[reply.id()], reply.attend()));
  }
  EXPECT_TRUE(Close().ok());
}

TEST_F(StreamTest, OneFailingDoesNotEndTheStream) {
  v1::AttendRequest bad = Small();
  bad.set_request_id("the-bad-one");
  bad.mutable_k()->set_shape(0, -1);
  ASSERT_TRUE(Send(1, bad));
  v1::AttendStreamResponse reply = Receive();
  EXPECT_EQ(reply.id(), 1u);
  ASSERT_TRUE(reply.has_error());
  EXPECT_EQ(reply.error().code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(InfoOf(reply.error().details()).field, "k.shape");
  EXPECT_EQ(InfoOf(reply.error().details()).request_id, "the-bad-one");
  const v1::AttendRequest good = Small();
  ASSERT_TRUE(Send(1, good));  // the id is free again
  reply = Receive();
  EXPECT_TRUE(reply.has_attend() && Answers(good, reply.attend()));
  EXPECT_TRUE(Close().ok());
}

TEST_F(StreamTest, MessageWithoutARequest) {
  v1::AttendStreamRequest message;
  message.set_id(9);
  ASSERT_TRUE(stream_->Write(message));
  const v1::AttendStreamResponse reply = Receive();
  EXPECT_EQ(reply.id(), 9u);
  EXPECT_EQ(InfoOf(reply.error().details()).field, "message");
  EXPECT_TRUE(Close().ok());
}

TEST_F(StreamTest, UnknownFieldOfTheEnvelope) {
  v1::AttendStreamRequest message;
  message.set_id(9);
  *message.mutable_attend() = Small();
  message.GetReflection()->MutableUnknownFields(&message)->AddVarint(77, 1);
  ASSERT_TRUE(stream_->Write(message));
  const v1::AttendStreamResponse reply = Receive();
  EXPECT_EQ(InfoOf(reply.error().details()).field, "77");
  EXPECT_TRUE(Close().ok());
}

TEST_F(StreamTest, CancelOneOfTwo) {
  fixture_->device().Hold();
  const v1::AttendRequest request = Small();
  ASSERT_TRUE(Send(1, request));
  fixture_->device().AwaitRunning(1);
  ASSERT_TRUE(Send(2, request));
  ASSERT_TRUE(Eventually([&] { return stats().queued_requests == 1; }));
  ASSERT_TRUE(Cancel(2));
  v1::AttendStreamResponse reply = Receive();  // while the device is still held
  EXPECT_EQ(reply.id(), 2u);
  EXPECT_EQ(reply.error().code(), grpc::StatusCode::CANCELLED);
  ASSERT_TRUE(Cancel(17));  // nothing of that id: no harm
  fixture_->device().Release();
  reply = Receive();
  EXPECT_EQ(reply.id(), 1u);
  EXPECT_TRUE(reply.has_attend());
  EXPECT_TRUE(Close().ok());
}

TEST_F(StreamTest, OwnDeadlineOfARequest) {
  fixture_->device().Hold();
  const v1::AttendRequest request = Small();
  ASSERT_TRUE(Send(1, request));
  fixture_->device().AwaitRunning(1);
  ASSERT_TRUE(Send(2, request, 0.05));
  v1::AttendStreamResponse reply = Receive();
  EXPECT_EQ(reply.id(), 2u);
  EXPECT_EQ(reply.error().code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  for (const double bad :
       {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    ASSERT_TRUE(Send(3, request, bad));
    reply = Receive();
    EXPECT_EQ(InfoOf(reply.error().details()).field, "timeout_seconds");
  }
  fixture_->device().Release();
  EXPECT_EQ(Receive().id(), 1u);
  ASSERT_TRUE(Send(4, request, 1e300));  // as good as none
  EXPECT_TRUE(Receive().has_attend());
  EXPECT_TRUE(Close().ok());
}

TEST_F(StreamTest, IdInUseEndsTheStream) {
  fixture_->device().Hold();
  ASSERT_TRUE(Send(5, Small()));
  fixture_->device().AwaitRunning(1);
  ASSERT_TRUE(Send(5, Small()));
  ASSERT_TRUE(Eventually([&] {
    return testing::MetricOf(fixture_->server().http_port(),
                             R"(attend_rejected_total{reason="invalid"})") == 1;
  }));
  fixture_->device().Release();
  EXPECT_TRUE(Receive().has_attend());  // the first one is answered
  const grpc::Status status = Close();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(InfoOf(status).field, "id");
}

TEST_F(StreamTest, ClientGoneWithManyInFlight) {
  fixture_->device().Hold();
  const v1::AttendRequest request = Small();
  for (uint64_t id = 0; id < 20; ++id) ASSERT_TRUE(Send(id, request));
  ASSERT_TRUE(Eventually([&] { return stats().in_flight_requests == 20; }));
  context_->TryCancel();
  // All but what is running leave the queue at once.
  ASSERT_TRUE(Eventually([&] { return stats().queued_requests == 0; }));
  fixture_->device().Release();
  EXPECT_TRUE(Eventually(
      [&] { return stats().in_flight_requests == 0 && stats().staging_used_bytes == 0; }));
  EXPECT_TRUE(Eventually([&] {
    return testing::MetricOf(fixture_->server().http_port(), "attend_streams_open") == 0;
  }));
}

TEST_F(StreamTest, HalfCloseStillAnswers) {
  fixture_->device().Hold();
  ASSERT_TRUE(Send(1, Small()));
  ASSERT_TRUE(stream_->WritesDone());
  fixture_->device().AwaitRunning(1);
  fixture_->device().Release();
  EXPECT_TRUE(Receive().has_attend());
  v1::AttendStreamResponse reply;
  EXPECT_FALSE(stream_->Read(&reply));
  EXPECT_TRUE(stream_->Finish().ok());
}

TEST_F(StreamTest, UnreadRepliesPauseReading) {
  // A client that sends bad requests and reads nothing: the server stops reading, and grows no
  // more.
  v1::AttendRequest bad = Small();
  bad.clear_q();
  std::thread sender([&] {
    for (uint64_t id = 0; id < 200000; ++id) {
      if (!Send(id, bad)) return;
    }
  });
  const int http = fixture_->server().http_port();
  const std::string series =
      R"(attend_requests_total{code="INVALID_ARGUMENT",method="AttendStream"})";
  double last = -1;
  int unchanged = 0;
  ASSERT_TRUE(Eventually([&] {  // it comes to rest, far below what was sent
    const double now = testing::MetricOf(http, series).value_or(-1);
    unchanged = now == last && now > 0 ? unchanged + 1 : 0;
    last = now;
    return unchanged >= 20;
  }));
  EXPECT_LT(last, 100000);
  context_->TryCancel();
  sender.join();
}

}  // namespace
}  // namespace attend
