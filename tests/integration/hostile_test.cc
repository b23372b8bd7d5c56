// The process under bad input and overload: it lives, answers the good, and gives memory back.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <thread>

#include "absl/base/config.h"
#include "grpcpp/generic/generic_stub.h"
#include "tests/fuzz/request_seeds.h"
#include "tests/testing/server_fixture.h"
#include "tests/testing/server_process.h"

namespace attend {
namespace {

using testing::Answers;
using testing::Call;
using testing::CallResult;
using testing::Eventually;
using testing::InfoOf;
using testing::MakeRequest;
using testing::Random;
using testing::ServerProcess;

// Sends `bytes` as the request message of Attend.
grpc::Status SendBytes(grpc::GenericStub* stub, const std::string& bytes) {
  grpc::Slice slice(bytes);
  grpc::ByteBuffer request(&slice, 1), response;
  grpc::ClientContext context;
  std::promise<grpc::Status> ended;
  stub->UnaryCall(&context, "/attend.v1.AttentionService/Attend", grpc::StubOptions(), &request,
                  &response, [&](grpc::Status status) { ended.set_value(std::move(status)); });
  return ended.get_future().get();
}

double Resident(const ServerProcess& server) {
  return server.Metric("process_resident_memory_bytes").value_or(0);
}

// Seconds of hostile traffic; a longer run is for the night.
std::chrono::seconds FloodTime() {
  const char* text = std::getenv("ATTEND_FLOOD_SECONDS");
  return std::chrono::seconds(text == nullptr ? 5 : std::atoi(text));
}

TEST(HostileTest, MalformedMessagesAsFastAsTheyCome) {
  ServerProcess server({"--log-lines-per-second=1"});
  Random random(testing::MixSeed(testing::TestSeed(), "hostile"));
  const std::vector<std::string> seeds = testing::RequestSeeds();
  std::atomic<bool> stop{false};
  std::atomic<int64_t> sent{0};
  std::vector<std::thread> attackers;
  for (uint64_t thread = 0; thread < 3; ++thread) {
    attackers.emplace_back([&, seed = random.Next()] {
      Random own(seed);
      grpc::GenericStub stub(server.Connect());
      while (!stop) {
        std::string bytes =
            seeds[static_cast<size_t>(own.Between(0, static_cast<int64_t>(seeds.size()) - 1))]
                .substr(1);
        for (int64_t i = own.Between(0, 6); i > 0 && !bytes.empty(); --i) {
          bytes[static_cast<size_t>(own.Between(0, static_cast<int64_t>(bytes.size()) - 1))] =
              static_cast<char>(own.Next());
        }
        if (own.Chance(0.1)) bytes.append(200000, '\xff');
        SendBytes(&stub, bytes);
        ++sent;
      }
    });
  }
  // A good client is served all along.
  const auto stub = server.Stub();
  const auto until = std::chrono::steady_clock::now() + FloodTime();
  double settled = 0, last = 0;
  int good = 0;
  // Counts decide, not speed: a busy machine takes longer for the same.
  while (std::chrono::steady_clock::now() < until || good < 20 || sent < 600) {
    const v1::AttendRequest request = MakeRequest({}, &random);
    const CallResult result = Call(stub.get(), request);
    ASSERT_TRUE(result.status.ok() && Answers(request, result.reply))
        << result.status.error_message();
    ++good;
    last = Resident(server);
    if (sent < 300) settled = last;  // what connections and caches take is taken by now
  }
  stop = true;
  for (std::thread& attacker : attackers) attacker.join();
  EXPECT_LT(last, settled + (64 << 20)) << "grew over " << sent << " messages";
  EXPECT_EQ(server.Terminate(), 0) << server.process().Stderr();
}

TEST(HostileTest, OverloadRefusesAtOnceAndServesOn) {
  Random random(testing::MixSeed(testing::TestSeed(), "overload"));
  ServerProcess server({"--max-in-flight-requests=4", "--client-share=1"});
  testing::RequestShape shape;
  shape.rows_q = shape.rows_k = 600;
  const v1::AttendRequest request = MakeRequest(shape, &random);
  std::atomic<int> answered{0}, refused{0}, other{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 12; ++i) {
    clients.emplace_back([&] {
      const auto stub = server.Stub();
      for (int n = 0; n < 15; ++n) {
        const CallResult result = Call(stub.get(), request);
        if (result.status.ok()) {
          ++answered;
        } else if (result.status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED &&
                   InfoOf(result.status).reason == "QUEUE_FULL" && result.pushback.has_value()) {
          ++refused;
        } else {
          ++other;
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(other, 0);
  EXPECT_GT(refused, 0);
  EXPECT_GT(answered, 0);
  EXPECT_EQ(answered + refused, 180);
  EXPECT_TRUE(Call(server.Stub().get(), request).status.ok());
  EXPECT_TRUE(Eventually(
      [&] { return server.Metric(R"(attend_pinned_memory_used_bytes{device="0"})") == 0; }));
}

#ifdef ABSL_HAVE_ADDRESS_SANITIZER
// Its allocator keeps free blocks by thread and size, of the 1 GB that pass: 57 MB were measured,
// and 134 MB where the server did not purge it.
constexpr double kKeptByAllocator = 96 << 20;
#else
constexpr double kKeptByAllocator = 16 << 20;  // less than one message
#endif

TEST(HostileTest, MemoryIsBackAfterRefusedLargeRequests) {
  Random random(testing::MixSeed(testing::TestSeed(), "large"));
  ServerProcess server;
  testing::RequestShape shape;
  shape.rows_q = 1, shape.rows_k = 100000, shape.head_dim = shape.head_dim_v = 16;  // 25 MB
  v1::AttendRequest bad = MakeRequest(shape, &random);
  bad.set_softcap(-1);
  const v1::AttendRequest good = MakeRequest({}, &random);
  EXPECT_TRUE(Call(server.Stub().get(), good).status.ok());
  const double before = Resident(server);
  {
    const auto stub = server.Stub();
    for (int i = 0; i < 40; ++i) {
      EXPECT_EQ(Call(stub.get(), bad).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    }
  }
  // Without the connection, whose read buffers gRPC keeps, and once the server sees that it is
  // idle, little is left.
  EXPECT_TRUE(Eventually([&] { return Resident(server) < before + kKeptByAllocator; }))
      << before << " bytes before, " << Resident(server) << " after";
  EXPECT_EQ(server.Metric(R"(attend_pinned_memory_used_bytes{device="0"})"), 0);
  EXPECT_TRUE(Call(server.Stub().get(), good).status.ok());
}

TEST(HostileTest, CancelStorm) {
  Random random(testing::MixSeed(testing::TestSeed(), "storm"));
  ServerProcess server;
  testing::RequestShape shape;
  shape.rows_q = shape.rows_k = 200;
  const v1::AttendRequest request = MakeRequest(shape, &random);
  std::vector<std::thread> clients;
  for (uint64_t i = 0; i < 4; ++i) {
    clients.emplace_back([&, seed = random.Next()] {
      Random own(seed);
      const auto stub = server.Stub();
      for (int n = 0; n < 100; ++n) {
        grpc::ClientContext context;
        context.set_deadline(std::chrono::system_clock::now() +
                             std::chrono::microseconds(own.Between(0, 20000)));
        v1::AttendResponse reply;
        stub->Attend(&context, request, &reply);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_TRUE(Eventually([&] {
    return server.Metric(R"(attend_in_flight_requests{device="0"})") == 0 &&
           server.Metric(R"(attend_pinned_memory_used_bytes{device="0"})") == 0 &&
           server.Metric(R"(attend_requests_in_flight{method="Attend"})") == 0;
  }));
  EXPECT_TRUE(Call(server.Stub().get(), request).status.ok());
  EXPECT_EQ(server.Terminate(), 0);
}

}  // namespace
}  // namespace attend
