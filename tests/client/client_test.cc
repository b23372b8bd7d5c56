// The client library against a scripted server, over both kinds of call.

#include "attend/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <latch>
#include <thread>
#include <vector>

#include "tests/client/fake_service.h"
#include "tests/client/values.h"

namespace attend::client {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

class ClientTest : public ::testing::TestWithParam<CallMode> {
 protected:
  static ClientOptions Options() {
    ClientOptions options;
    options.channels = 1;
    options.mode = GetParam();
    options.default_timeout = std::chrono::seconds(20);
    options.retry.initial_backoff = milliseconds(2);
    options.retry.max_backoff = milliseconds(10);
    return options;
  }
  static std::unique_ptr<Client> Connect(const FakeServer& server,
                                         const ClientOptions& options = Options()) {
    absl::StatusOr<std::unique_ptr<Client>> client = Client::Create(server.target(), options);
    EXPECT_TRUE(client.ok()) << client.status();
    return *std::move(client);
  }
};

INSTANTIATE_TEST_SUITE_P(Modes, ClientTest, ::testing::Values(CallMode::kUnary, CallMode::kStream),
                         [](const auto& instance) {
                           return instance.param == CallMode::kUnary ? "Unary" : "Stream";
                         });

TEST_P(ClientTest, SendsEveryByteAndGetsEveryByteBack) {
  FakeServer server(EchoHandler);
  const auto client = Connect(server);
  const Values values(37, 3, 5);
  const absl::StatusOr<AttendResult> result =
      client->Attend(values.inputs(), {.return_lse = true, .request_id = "r-1"});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->o.dtype(), DataType::kFp16);
  EXPECT_EQ(result->o.shape(), (Shape{37, 3, 5}));
  EXPECT_TRUE(values.IsEcho(result->o));
  EXPECT_EQ(result->lse.shape(), Shape{2});
  EXPECT_EQ(result->lse.values<float>()[1], -2.5f);
  EXPECT_EQ(result->request_id, "r-1");
  EXPECT_EQ(result->stats.batch_requests, 3);
  EXPECT_EQ(result->stats.backend, "fake");
  EXPECT_EQ(result->stats.queue_seconds, 0.25);
  EXPECT_EQ(result->attempts, 1);
}

TEST_P(ClientTest, WritesIntoTheCallersDestination) {
  FakeServer server(EchoHandler);
  const auto client = Connect(server);
  const Values values(9, 1, 8);
  std::vector<std::byte> o(values.bytes());
  absl::StatusOr<AttendResult> result = client->Attend(values.inputs(), {.o_destination = o});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->o.bytes().data(), o.data());
  EXPECT_TRUE(values.IsEcho(result->o));

  std::vector<std::byte> wrong(values.bytes() - 1);
  result = client->Attend(values.inputs(), {.o_destination = wrong});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("o_destination"));
}

TEST_P(ClientTest, EmptyTensorsTravel) {
  FakeServer server(EchoHandler);
  const auto client = Connect(server);
  const AttendInputs inputs{TensorRef::Fp32({}, {0, 2, 8}), TensorRef::Fp32({}, {0, 2, 8}),
                            TensorRef::Fp32({}, {0, 2, 8})};
  const absl::StatusOr<AttendResult> result = client->Attend(inputs);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->o.shape(), (Shape{0, 2, 8}));
}

TEST_P(ClientTest, RefusesTensorsThatDoNotMatchTheirShapeWithoutSending) {
  FakeServer server(EchoHandler);
  const auto client = Connect(server);
  const Values values(4, 1, 8);
  AttendInputs inputs = values.inputs();
  inputs.k.shape = {5, 1, 8};
  absl::StatusOr<AttendResult> result = client->Attend(inputs);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DetailsOf(result.status()).field, "k");
  EXPECT_EQ(DetailsOf(result.status()).attempts, 0);
  EXPECT_FALSE(DetailsOf(result.status()).request_id.empty());

  inputs = values.inputs();
  inputs.v.shape = {int64_t{1} << 40, int64_t{1} << 40, 8};
  EXPECT_EQ(DetailsOf(client->Attend(inputs).status()).field, "v.shape");
  inputs.v.shape = {-1, 1, 8};
  EXPECT_EQ(DetailsOf(client->Attend(inputs).status()).field, "v.shape");
  EXPECT_EQ(server.calls(), 0);
}

TEST_P(ClientTest, RefusesWhatNoMessageCanCarry) {
  FakeServer server(EchoHandler);
  const auto client = Connect(server);
  // Never read: the size alone decides.
  const char byte = 0;
  const TensorRef huge{DataType::kFp16, {int64_t{1} << 30}, &byte, size_t{1} << 31};
  const absl::StatusOr<AttendResult> result = client->Attend({huge, huge, huge});
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(result.status().message()), HasSubstr("2 GiB"));
}

TEST_P(ClientTest, CarriesEverythingThatAnErrorSays) {
  FakeServer server([](const v1::AttendRequest&, v1::AttendResponse*) {
    return RichError(grpc::StatusCode::INVALID_ARGUMENT, "q.shape: 3 is not 4", "INVALID_FIELD",
                     "q.shape", -1, "id-from-server");
  });
  const auto client = Connect(server);
  const Values values(4, 1, 8);
  const absl::Status status = client->Attend(values.inputs()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "q.shape: 3 is not 4");
  const ErrorDetails details = DetailsOf(status);
  EXPECT_EQ(details.reason, "INVALID_FIELD");
  EXPECT_EQ(details.field, "q.shape");
  EXPECT_EQ(details.request_id, "id-from-server");
  EXPECT_EQ(details.attempts, 1);
  EXPECT_FALSE(details.retry_after.has_value());
  EXPECT_EQ(server.calls(), 1) << "a request that is wrong stays wrong";
}

// Above 256 KiB gRPC's own retries do nothing.
TEST_P(ClientTest, RetriesLargeRequestsWholly) {
  for (const int64_t rows : {1, 5000}) {
    std::atomic<int> failures{3};
    FakeServer server([&](const v1::AttendRequest& request, v1::AttendResponse* response) {
      if (failures.fetch_sub(1) > 0) {
        return grpc::Status(grpc::StatusCode::UNAVAILABLE, "draining");
      }
      return EchoHandler(request, response);
    });
    const auto client = Connect(server);
    const Values values(rows, 2, 64);
    const absl::StatusOr<AttendResult> result = client->Attend(values.inputs());
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->attempts, 4);
    EXPECT_EQ(server.calls(), 4);
    EXPECT_TRUE(values.IsEcho(result->o));
  }
}

// What gRPC's own shutdown makes of calls that it has not yet handed over.
TEST_P(ClientTest, RetriesWhatTheServerCancels) {
  std::atomic<int> failures{1};
  FakeServer server([&](const v1::AttendRequest& request, v1::AttendResponse* response) {
    return failures.fetch_sub(1) > 0 ? grpc::Status(grpc::StatusCode::CANCELLED, "CANCELLED")
                                     : EchoHandler(request, response);
  });
  const auto client = Connect(server);
  const Values values(4, 1, 8);
  const absl::StatusOr<AttendResult> result = client->Attend(values.inputs());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->attempts, 2);
}

TEST_P(ClientTest, GivesUpAfterItsAttempts) {
  FakeServer server([](const v1::AttendRequest&, v1::AttendResponse*) {
    return RichError(grpc::StatusCode::RESOURCE_EXHAUSTED, "queue is full", "QUEUE_FULL", "", 1);
  });
  ClientOptions options = Options();
  options.retry.max_attempts = 3;
  const auto client = Connect(server, options);
  const Values values(4, 1, 8);
  const absl::Status status = client->Attend(values.inputs()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(server.calls(), 3);
  EXPECT_EQ(DetailsOf(status).attempts, 3);
  EXPECT_EQ(DetailsOf(status).reason, "QUEUE_FULL");
  EXPECT_EQ(DetailsOf(status).retry_after, milliseconds(1));
}

TEST_P(ClientTest, DoesNotRetryOverloadWithoutAHint) {
  FakeServer server([](const v1::AttendRequest&, v1::AttendResponse*) {
    return RichError(grpc::StatusCode::RESOURCE_EXHAUSTED, "never", "MEMORY", "");
  });
  const auto client = Connect(server);
  const Values values(4, 1, 8);
  EXPECT_EQ(client->Attend(values.inputs()).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(server.calls(), 1);
}

TEST_P(ClientTest, WaitsAsLongAsTheServerSays) {
  std::atomic<int> failures{1};
  FakeServer server([&](const v1::AttendRequest& request, v1::AttendResponse* response) {
    return failures.fetch_sub(1) > 0
               ? RichError(grpc::StatusCode::RESOURCE_EXHAUSTED, "full", "QUEUE_FULL", "", 150)
               : EchoHandler(request, response);
  });
  const auto client = Connect(server);
  const Values values(4, 1, 8);
  const auto start = std::chrono::steady_clock::now();
  ASSERT_TRUE(client->Attend(values.inputs()).ok());
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(150));
  EXPECT_EQ(server.calls(), 2);
}

TEST_P(ClientTest, DoesNotWaitPastTheDeadline) {
  FakeServer server([](const v1::AttendRequest&, v1::AttendResponse*) {
    return RichError(grpc::StatusCode::RESOURCE_EXHAUSTED, "full", "QUEUE_FULL", "", 3'600'000);
  });
  const auto client = Connect(server);
  const Values values(4, 1, 8);
  // The hint is an hour: the refusal comes back at once, as itself.
  const absl::Status status = client->Attend(values.inputs()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(server.calls(), 1);
}

TEST_P(ClientTest, EndsAtItsDeadline) {
  FakeServer server(EchoHandler);
  server.Hold();
  const auto client = Connect(server);
  const Values values(4, 1, 8);
  const absl::Status status =
      client->Attend(values.inputs(), {.timeout = milliseconds(100)}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  server.Release();
  // The client and its connection are still good.
  EXPECT_TRUE(client->Attend(values.inputs()).ok());
}

TEST_P(ClientTest, CancelsWhatTheServerHolds) {
  FakeServer server(EchoHandler);
  server.Hold();
  const auto client = Connect(server);
  const Values values(4, 1, 8);
  std::promise<absl::Status> ended;
  const Call call = client->AttendAsync(
      values.inputs(), {},
      [&](absl::StatusOr<AttendResult> result) { ended.set_value(result.status()); });
  while (server.calls() == 0) std::this_thread::yield();
  call.Cancel();
  call.Cancel();
  EXPECT_EQ(ended.get_future().get().code(), absl::StatusCode::kCancelled);
  while (server.cancelled() == 0) std::this_thread::yield();  // the server is told
  server.Release();
  call.Cancel();  // long ended
  EXPECT_TRUE(client->Attend(values.inputs()).ok());
}

TEST_P(ClientTest, CancelsDuringABackoff) {
  FakeServer server([](const v1::AttendRequest&, v1::AttendResponse*) {
    return RichError(grpc::StatusCode::RESOURCE_EXHAUSTED, "full", "QUEUE_FULL", "", 10'000);
  });
  const auto client = Connect(server);
  const Values values(4, 1, 8);
  std::promise<absl::Status> ended;
  const Call call = client->AttendAsync(
      values.inputs(), {},
      [&](absl::StatusOr<AttendResult> result) { ended.set_value(result.status()); });
  while (server.calls() == 0) std::this_thread::yield();
  call.Cancel();
  EXPECT_EQ(ended.get_future().get().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(server.calls(), 1);
}

TEST_P(ClientTest, DestructionCancelsAndWaits) {
  FakeServer server(EchoHandler);
  server.Hold();
  auto client = Connect(server);
  const Values values(4, 1, 8);
  std::atomic<int> ended{0};
  for (int i = 0; i < 20; ++i) {
    client->AttendAsync(values.inputs(), {}, [&](absl::StatusOr<AttendResult> result) {
      EXPECT_EQ(result.status().code(), absl::StatusCode::kCancelled);
      ended.fetch_add(1);
    });
  }
  client.reset();
  EXPECT_EQ(ended.load(), 20);
}

TEST_P(ClientTest, SpreadsOverItsConnections) {
  FakeServer server(EchoHandler);
  server.Hold();
  ClientOptions options = Options();
  options.channels = 5;
  const auto client = Connect(server, options);
  const Values values(4, 1, 8);
  std::latch done(10);
  for (int i = 0; i < 10; ++i) {
    client->AttendAsync(values.inputs(), {}, [&](absl::StatusOr<AttendResult> result) {
      EXPECT_TRUE(result.ok()) << result.status();
      done.count_down();
    });
  }
  while (server.calls() < 10) std::this_thread::yield();
  server.Release();
  done.wait();
  EXPECT_EQ(server.peers(), 5u);
}

TEST_P(ClientTest, ExplainsAMessageThatTheServerDoesNotTake) {
  FakeServer server(EchoHandler, {.max_receive_bytes = 100'000});
  const auto client = Connect(server);
  const Values values(1000, 2, 64);
  const absl::Status status = client->Attend(values.inputs()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_EQ(DetailsOf(status).reason, "MESSAGE_TOO_LARGE");
  EXPECT_THAT(std::string(status.message()), HasSubstr("larger than"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("100000"));
  EXPECT_EQ(DetailsOf(status).attempts, 1);
  EXPECT_EQ(server.calls(), 0);
}

TEST_P(ClientTest, ReportsAServerThatIsNotThere) {
  std::string target;
  {
    FakeServer server(EchoHandler);
    target = server.target();
  }
  ClientOptions options = Options();
  options.retry.max_attempts = 2;
  const auto client = *Client::Create(target, options);
  const Values values(4, 1, 8);
  const absl::Status status = client->Attend(values.inputs()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(DetailsOf(status).attempts, 2);
  EXPECT_EQ(client->Connect(milliseconds(50)).code(), absl::StatusCode::kUnavailable);
}

TEST_P(ClientTest, ManyThreadsAtOnce) {
  FakeServer server(EchoHandler);
  ClientOptions options = Options();
  options.channels = 3;
  const auto client = Connect(server, options);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&client, t] {
      for (int i = 0; i < 25; ++i) {
        const Values values(1 + 31 * t + i, 2, 16);
        const absl::StatusOr<AttendResult> result = client->Attend(values.inputs());
        ASSERT_TRUE(result.ok()) << result.status();
        ASSERT_TRUE(values.IsEcho(result->o)) << "another request's answer";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(server.calls(), 200);
}

TEST_P(ClientTest, CallbacksMayStartCalls) {
  FakeServer server(EchoHandler);
  const auto client = Connect(server);
  const Values values(4, 1, 8);
  std::promise<void> done;
  int left = 50;
  std::function<void()> next = [&] {
    client->AttendAsync(values.inputs(), {}, [&](absl::StatusOr<AttendResult> result) {
      EXPECT_TRUE(result.ok()) << result.status();
      if (--left == 0) return done.set_value();
      next();
    });
  };
  next();
  done.get_future().wait();
  EXPECT_EQ(server.calls(), 50);
}

}  // namespace
}  // namespace attend::client
