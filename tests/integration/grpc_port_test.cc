// The gRPC port against clients that do not speak gRPC, or speak too much of it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/raw_connection.h"
#include "tests/testing/server_fixture.h"
#include "tests/testing/server_process.h"

namespace attend {
namespace {

using testing::Answers;
using testing::Call;
using testing::CallHeaders;
using testing::CallResult;
using testing::Eventually;
using testing::Frame;
using testing::FrameView;
using testing::GoAway;
using testing::GoAwayIn;
using ::testing::HasSubstr;
using testing::Http2Hello;
using testing::LiteralHeader;
using testing::MakeRequest;
using testing::Random;
using testing::RawConnection;
using testing::ServerProcess;

constexpr uint32_t kEnhanceYourCalm = 11;  // an error code of HTTP/2

class GrpcPortTest : public ::testing::Test {
 protected:
  // One good call; its channel stays open.
  ::testing::AssertionResult Serves(v1::AttentionService::Stub* stub) {
    const v1::AttendRequest request = MakeRequest({}, &random_);
    const CallResult result = Call(stub, request);
    if (result.status.ok() && Answers(request, result.reply)) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << result.status.error_message();
  }

  Random random_{testing::MixSeed(testing::TestSeed(), "port")};
};

double Open(const ServerProcess& server) {
  return server.Metric("attend_connections_open").value_or(-1);
}
double Refused(const ServerProcess& server, const char* reason) {
  return server.Metric(absl::StrCat("attend_connections_refused_total{reason=\"", reason, "\"}"))
      .value_or(-1);
}
double Resident(const ServerProcess& server) {
  return server.Metric("process_resident_memory_bytes").value_or(0);
}

bool HasIpv6() {
  const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  const bool bound = bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  close(fd);
  return bound;
}

TEST_F(GrpcPortTest, ConnectionsOfAnAddressAreLimited) {
  ServerProcess server({"--max-connections-per-address=8"});
  const auto stub = server.Stub();
  ASSERT_TRUE(Serves(stub.get()));  // the first connection
  std::vector<RawConnection> taken;
  for (int i = 0; i < 7; ++i) taken.emplace_back(server.grpc_port());
  ASSERT_TRUE(Eventually([&] { return Open(server) == 8; }));
  for (int i = 0; i < 3; ++i) {
    RawConnection more(server.grpc_port());
    EXPECT_TRUE(more.WaitForEnd());
    EXPECT_EQ(more.Received(), "");
  }
  EXPECT_EQ(Refused(server, "address"), 3);
  EXPECT_EQ(Call(server.Stub().get(), MakeRequest({}, &random_)).status.error_code(),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(Serves(stub.get()));  // who is in is served
  for (RawConnection& connection : taken) EXPECT_FALSE(connection.Closed());

  taken.clear();  // places come back
  ASSERT_TRUE(Eventually([&] { return Open(server) == 1; }));
  EXPECT_TRUE(Serves(server.Stub().get()));
  EXPECT_EQ(server.Terminate(), 0);
  EXPECT_THAT(server.process().Stderr(),
              HasSubstr("connection refused client=127.0.0.1 limit=address"));
}

TEST_F(GrpcPortTest, AllConnectionsAreLimited) {
  ServerProcess server({"--max-connections=3", "--max-connections-per-address=0"});
  std::vector<RawConnection> taken;
  for (int i = 0; i < 3; ++i) taken.emplace_back(server.grpc_port());
  ASSERT_TRUE(Eventually([&] { return Open(server) == 3; }));
  EXPECT_TRUE(RawConnection(server.grpc_port()).WaitForEnd());
  EXPECT_EQ(Refused(server, "total"), 1);
  taken.clear();
  ASSERT_TRUE(Eventually([&] { return Open(server) == 0; }));
  EXPECT_TRUE(Serves(server.Stub().get()));
}

// Connections come and go, in every way of ending: none is counted for ever.
TEST_F(GrpcPortTest, CountsNoConnectionThatIsGone) {
  ServerProcess server({"--max-connections-per-address=64"});
  for (int i = 0; i < 300; ++i) {
    RawConnection connection(server.grpc_port());
    const int64_t kind = random_.Between(0, 3);
    if (kind == 1) connection.Send(Http2Hello());
    if (kind == 2) connection.Send("GET / HTTP/1.1\r\n\r\n");
    if (kind == 3) {
      EXPECT_TRUE(Serves(server.Stub().get()));
    }
  }
  EXPECT_TRUE(Eventually([&] { return Open(server) == 0; })) << Open(server);
  const double files = server.Metric("process_open_fds").value_or(1e9);
  EXPECT_LT(files, 64);
}

// Sends bytes one by one where it sends at all: never finishes what it began.
TEST_F(GrpcPortTest, SlowConnectionsAreClosedAndOthersServed) {
  ServerProcess server({"--handshake-timeout=500ms"});
  const std::string hello = Http2Hello();
  std::vector<std::pair<RawConnection, size_t>> slow;
  for (size_t i = 0; i < 40; ++i) {
    slow.emplace_back(RawConnection(server.grpc_port()), 0);
    ASSERT_TRUE(slow.back().first.connected());
  }
  const auto stub = server.Stub();
  size_t closed = 0;
  EXPECT_TRUE(Eventually([&] {
    EXPECT_TRUE(Serves(stub.get()));
    closed = 0;
    for (size_t i = 0; i < slow.size(); ++i) {
      auto& [connection, sent] = slow[i];
      if (connection.Closed()) {
        ++closed;
      } else if (i % 2 == 1 && sent + 1 < hello.size()) {
        connection.Send(hello.substr(sent++, 1));
      }
    }
    return closed == slow.size();
  })) << closed
      << " of " << slow.size();
  EXPECT_TRUE(Serves(server.Stub().get()));
  EXPECT_TRUE(Eventually([&] { return Open(server) <= 2; }));
}

TEST_F(GrpcPortTest, SilentPeersAreFoundByProbes) {
  // Long enough for the answers of a client on a busy machine.
  ServerProcess server({"--keepalive-time=300ms", "--keepalive-timeout=5s"});
  RawConnection dead(server.grpc_port());
  ASSERT_TRUE(dead.Send(Http2Hello()));  // and then no answer to any PING
  const auto stub = server.Stub();
  EXPECT_TRUE(Serves(stub.get()));
  EXPECT_TRUE(dead.WaitForEnd());
  EXPECT_TRUE(Serves(stub.get()));  // it answered the probes
}

TEST_F(GrpcPortTest, TooManyPingsEndTheConnection) {
  ServerProcess server;
  const auto stub = server.Stub();
  EXPECT_TRUE(Serves(stub.get()));
  RawConnection pinger(server.grpc_port());
  ASSERT_TRUE(pinger.Send(Http2Hello()));
  int pings = 0;
  while (pings < 1000 && pinger.Send(Frame(testing::kFramePing, 0, 0, "abcdefgh")) &&
         !GoAwayIn(pinger.Received())) {
    ++pings;
  }
  EXPECT_TRUE(pinger.WaitForEnd());
  const std::optional<GoAway> goodbye = GoAwayIn(pinger.Received());
  ASSERT_TRUE(goodbye.has_value()) << pings;
  EXPECT_EQ(goodbye->error, kEnhanceYourCalm);
  EXPECT_THAT(goodbye->text, HasSubstr("too_many_pings"));
  EXPECT_TRUE(Serves(stub.get()));
}

TEST_F(GrpcPortTest, LargeHeadersAreRefused) {
  ServerProcess server({"--max-metadata-bytes=8KiB"});
  const auto stub = server.Stub();
  EXPECT_TRUE(Serves(stub.get()));
  const v1::AttendRequest request = MakeRequest({}, &random_);
  for (const size_t bytes : {size_t{2000}, size_t{20000}, size_t{200000}}) {
    const CallResult result = Call(server.Stub().get(), request, [&](grpc::ClientContext* context) {
      context->AddMetadata("x-large", std::string(bytes, 'x'));
    });
    EXPECT_EQ(result.status.error_code(),
              bytes < 8192 ? grpc::StatusCode::OK : grpc::StatusCode::RESOURCE_EXHAUSTED)
        << bytes << " " << result.status.error_message();
  }
  EXPECT_TRUE(Serves(stub.get()));
}

// A header block that goes on and on over CONTINUATION frames: gRPC keeps it all.
TEST_F(GrpcPortTest, EndlessHeadersEndTheConnection) {
  ServerProcess server({"--max-receive-message-bytes=4MiB", "--max-receive-buffer-bytes=16MiB"});
  EXPECT_TRUE(Serves(server.Stub().get()));
  const std::string more =
      Frame(testing::kFrameContinuation, 0, 1, LiteralHeader("x-more", std::string(16000, 'm')));
  for (int i = 0; i < 3; ++i) {
    RawConnection endless(server.grpc_port());
    endless.Send(Http2Hello() + Frame(testing::kFrameHeaders, 0, 1, CallHeaders()));
    // Twice what is allowed, if it lives so long; then it only waits.
    for (size_t sent = 0; sent < (64 << 20) && endless.Send(more);) sent += more.size();
    EXPECT_TRUE(endless.WaitForEnd());
  }
  // gRPC, short of memory until it has dropped theirs, may send others away as well.
  EXPECT_TRUE(Eventually([&] { return Serves(server.Stub().get()); }));
  EXPECT_TRUE(Eventually([&] { return Open(server) == 0; })) << Open(server);
  EXPECT_EQ(server.Terminate(), 0) << server.process().Stderr();
}

// gRPC hands on calls that end before a message came; they are no messages.
TEST_F(GrpcPortTest, CallsWithoutMessageExcuseNothing) {
  ServerProcess server({"--max-receive-message-bytes=4MiB", "--max-receive-buffer-bytes=16MiB"});
  RawConnection idle(server.grpc_port());
  ASSERT_TRUE(idle.Send(Http2Hello()));
  const std::string headers = CallHeaders() + LiteralHeader("x-more", std::string(8000, 'm'));
  const auto answers = [](const std::string& bytes) {
    uint32_t count = 0;
    testing::ForEachFrame(bytes, [&](const FrameView& frame) {
      if (frame.type == testing::kFrameHeaders && (frame.flags & testing::kEndStream) != 0) ++count;
    });
    return count;
  };
  // Twice what is allowed, if it lives so long; then it only waits. Never many calls at once, which
  // would be another reason to end it.
  uint32_t calls = 0;
  for (size_t sent = 0; sent < (64 << 20);) {
    const std::string call = Frame(
        testing::kFrameHeaders, testing::kEndHeaders | testing::kEndStream, 2 * calls + 1, headers);
    if (!idle.Send(call)) break;
    sent += call.size();
    ++calls;
    const auto all_answered = [&](const std::string& bytes) { return answers(bytes) == calls; };
    if (calls % 128 == 0 && !idle.ReadUntil(all_answered)) break;
  }
  EXPECT_TRUE(idle.WaitForEnd()) << calls;
  EXPECT_EQ(Refused(server, "memory"), 1) << calls;
  EXPECT_TRUE(Eventually([&] { return Serves(server.Stub().get()); }));
}

// Many times the limit, in whole messages: nothing to hold against a connection.
TEST_F(GrpcPortTest, MessagesExcuseTheirConnection) {
  for (const char* host : {"127.0.0.1", "[::1]"}) {
    // Checked here, since a failed start is a failure.
    if (host[0] == '[' && !HasIpv6()) continue;
    ServerProcess server({absl::StrCat("--listen=", host, ":0"), "--max-receive-message-bytes=2MiB",
                          "--max-receive-buffer-bytes=4MiB"});
    const auto stub = v1::AttentionService::NewStub(grpc::CreateChannel(
        absl::StrCat(host, ":", server.grpc_port()), grpc::InsecureChannelCredentials()));
    testing::RequestShape shape;
    shape.rows_q = 1, shape.rows_k = 2000, shape.head_dim = shape.head_dim_v = 16;  // 0.5 MB
    const v1::AttendRequest request = MakeRequest(shape, &random_);
    for (int i = 0; i < 60; ++i) {
      const CallResult result = Call(stub.get(), request);
      ASSERT_TRUE(result.status.ok()) << host << " " << result.status.error_message();
    }
    EXPECT_EQ(Refused(server, "memory"), 0) << host;
  }
}

TEST_F(GrpcPortTest, StreamsOfAConnectionAreLimited) {
  ServerProcess server({"--max-streams-per-connection=4"});
  RawConnection greedy(server.grpc_port());
  ASSERT_TRUE(greedy.Send(Http2Hello()));
  // It has been told: SETTINGS_MAX_CONCURRENT_STREAMS (3) is 4.
  const auto told = [](const std::string& bytes) {
    bool found = false;
    testing::ForEachFrame(bytes, [&](const FrameView& frame) {
      found = found ||
              (frame.type == testing::kFrameSettings &&
               frame.payload.find(std::string_view("\0\3\0\0\0\4", 6)) != std::string_view::npos);
    });
    return found;
  };
  EXPECT_TRUE(greedy.ReadUntil(told) && told(greedy.Received()));
  // The limit counts once it is acknowledged.
  ASSERT_TRUE(greedy.Send(Frame(testing::kFrameSettings, 1, 0, "")));
  for (uint32_t stream = 1; stream < 20; stream += 2) {
    ASSERT_TRUE(
        greedy.Send(Frame(testing::kFrameHeaders, testing::kEndHeaders, stream, CallHeaders())));
  }
  EXPECT_TRUE(greedy.WaitForEnd());  // more calls than were allowed end the connection
  EXPECT_TRUE(Serves(server.Stub().get()));
}

// Streams opened and reset at once, which cost the client nothing and never reach the limit.
TEST_F(GrpcPortTest, RapidResetsStarveNobody) {
  ServerProcess server;
  const auto stub = server.Stub();
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(Serves(stub.get()));
  const double before = Resident(server);
  RawConnection rapid(server.grpc_port());
  ASSERT_TRUE(rapid.Send(Http2Hello()));
  int served = 0;
  for (uint32_t stream = 1; stream < 10000; stream += 2) {
    if (!rapid.Send(Frame(testing::kFrameHeaders, testing::kEndHeaders, stream, CallHeaders()) +
                    Frame(testing::kFrameReset, 0, stream, std::string_view("\0\0\0\10", 4)))) {
      break;  // thrown out: fine
    }
    if (stream % 1000 == 1) {
      EXPECT_TRUE(Serves(stub.get()));
      ++served;
    }
  }
  EXPECT_GT(served, 0);
  EXPECT_TRUE(Eventually(
      [&] { return server.Metric(R"(attend_requests_in_flight{method="Attend"})") == 0; }));
  EXPECT_LT(Resident(server), before + (64 << 20));
  EXPECT_EQ(server.Terminate(), 0);
}

}  // namespace
}  // namespace attend
