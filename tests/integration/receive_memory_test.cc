// What clients can make gRPC hold of messages on their way in, before anyone can refuse them, is
// bounded: the calls that it goes on to keep, not the memory that it touches before it resets the
// others, for which no bound was found (server/README.md has figures).

#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/testing/half_sent_call.h"
#include "tests/testing/server_fixture.h"
#include "tests/testing/server_process.h"

namespace attend {
namespace {

using testing::Answers;
using testing::Call;
using testing::Eventually;
using testing::HalfSentCall;
using testing::MakeRequest;
using testing::Random;
using testing::ServerProcess;

constexpr int kClients = 12;
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kMessageBytes = 16 * kMiB;

// The most memory that the process ever held.
int64_t PeakBytes(ServerProcess& server) {
  std::ifstream status("/proc/" + std::to_string(server.process().pid()) + "/status");
  std::string word;
  int64_t kibibytes = 0;
  while (status >> word) {
    if (word == "VmHWM:") status >> kibibytes;
  }
  return kibibytes * 1024;
}

struct Outcome {
  int64_t grown = 0;  // bytes of the process, at most
  int held = 0;       // calls that the server went on to keep, with all they sent
};

// All clients send at once what they can, while others are served.
Outcome SendHalfOfMany(const std::string& limit, int most_held) {
  Random random(testing::MixSeed(testing::TestSeed(), "receive memory"));
  ServerProcess server({"--max-receive-message-bytes=" + std::to_string(kMessageBytes), limit});
  const v1::AttendRequest good = MakeRequest({}, &random);
  // A call that meets a connection which the server is just closing is UNAVAILABLE.
  const auto served = [&] {
    const auto stub = server.Stub();
    return Eventually([&] {
      const testing::CallResult result = Call(stub.get(), good);
      return result.status.ok() && Answers(good, result.reply);
    });
  };
  EXPECT_TRUE(served());
  const int64_t before = PeakBytes(server);
  std::vector<std::unique_ptr<HalfSentCall>> calls;
  for (int i = 0; i < kClients; ++i) {
    calls.push_back(std::make_unique<HalfSentCall>(server.grpc_port(), kMessageBytes));
  }
  EXPECT_TRUE(Eventually([&] {
    bool busy = false;
    for (int i = 0; i < 64; ++i) {
      busy = false;
      for (const auto& call : calls) busy = call->Advance() || busy;
    }
    return !busy;
  }));
  EXPECT_TRUE(served());
  Outcome outcome;
  const auto held = [&] {
    outcome.held = 0;
    for (const auto& call : calls) {
      call->Advance();
      outcome.held += call->ended_by_server() ? 0 : 1;
    }
    return outcome.held;
  };
  EXPECT_TRUE(Eventually([&] { return held() <= most_held; }));
  outcome.grown = PeakBytes(server) - before;
  calls.clear();
  EXPECT_TRUE(served());
  EXPECT_EQ(server.Terminate(), 0) << server.process().Stderr();
  return outcome;
}

TEST(ReceiveMemory, IsBoundedHoweverManySend) {
  const Outcome outcome = SendHalfOfMany("--max-receive-buffer-bytes=48MiB", 48 / 16);
  EXPECT_LE(outcome.held, 48 / 16);
}

TEST(ReceiveMemory, CutsNobodyBelowTheLimit) {
  const Outcome outcome = SendHalfOfMany("--max-receive-buffer-bytes=1GiB", kClients);
  EXPECT_EQ(outcome.held, kClients);
  // What the other test bounds is real.
  EXPECT_GT(outcome.grown, kClients * kMessageBytes / 2);
}

}  // namespace
}  // namespace attend
