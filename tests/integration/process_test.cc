// The process: its command line, exit codes, ports and signals.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <future>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/testing/server_fixture.h"
#include "tests/testing/server_process.h"

namespace attend {
namespace {

using testing::Answers;
using testing::Call;
using testing::CallResult;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::HttpGet;
using testing::MakeRequest;
using testing::Process;
using testing::Random;
using testing::ServerBinary;
using testing::ServerProcess;

int Lines(const std::string& text) {
  return static_cast<int>(std::count(text.begin(), text.end(), '\n'));
}

TEST(ProcessTest, HelpAndVersion) {
  for (const char* flag : {"--help", "-h"}) {
    Process help({ServerBinary(), flag});
    EXPECT_EQ(help.Wait(), 0);
    EXPECT_THAT(help.Stdout(), HasSubstr("--max-in-flight-bytes=BYTES"));
    EXPECT_THAT(help.Stdout(), HasSubstr("(4GiB)"));
    EXPECT_EQ(help.Stderr(), "");
  }
  Process version({ServerBinary(), "--version"});
  EXPECT_EQ(version.Wait(), 0);
  EXPECT_THAT(version.Stdout(), HasSubstr("attend-server "));
}

TEST(ProcessTest, UsageErrorsExit2WithOneLine) {
  for (const char* bad : {"--nonsense", "--backend=abacus", "--workers=many", "--batch-delay=5",
                          "word", "--config-file=/nowhere", "--devices=x"}) {
    Process process({ServerBinary(), bad});
    EXPECT_EQ(process.Wait(), 2) << bad;
    EXPECT_EQ(Lines(process.Stderr()), 1) << process.Stderr();
    EXPECT_EQ(process.Stdout(), "");
  }
  Process process({ServerBinary()}, {"ATTEND_WORKERS=-3"});
  EXPECT_EQ(process.Wait(), 2);
  EXPECT_THAT(process.Stderr(), HasSubstr("ATTEND_WORKERS"));
}

TEST(ProcessTest, TakenPortsExit1WithOneLine) {
  ServerProcess first;
  Process same_grpc({ServerBinary(), "--backend=reference", "--http-listen=127.0.0.1:0",
                     absl::StrCat("--listen=127.0.0.1:", first.grpc_port())});
  EXPECT_EQ(same_grpc.Wait(), 1);
  EXPECT_EQ(Lines(same_grpc.Stderr()), 1) << same_grpc.Stderr();
  EXPECT_THAT(same_grpc.Stderr(), HasSubstr(absl::StrCat("127.0.0.1:", first.grpc_port())));
  Process same_http({ServerBinary(), "--backend=reference", "--listen=127.0.0.1:0",
                     absl::StrCat("--http-listen=127.0.0.1:", first.http_port())});
  EXPECT_EQ(same_http.Wait(), 1);
  EXPECT_EQ(Lines(same_http.Stderr()), 1) << same_http.Stderr();
  EXPECT_THAT(same_http.Stderr(), HasSubstr(absl::StrCat("127.0.0.1:", first.http_port())));
  EXPECT_EQ(first.Terminate(), 0);  // the first one never noticed
}

TEST(ProcessTest, DemandedBackendWithoutDeviceExits1) {
  Process process(
      {ServerBinary(), "--backend=cpu", "--devices=99", "--listen=127.0.0.1:0", "--http-listen="});
  EXPECT_EQ(process.Wait(), 1);
  EXPECT_EQ(Lines(process.Stderr()), 1) << process.Stderr();
  EXPECT_THAT(process.Stderr(), HasSubstr("99"));
}

TEST(ProcessTest, ServesAndStopsOnEitherSignal) {
  Random random(testing::MixSeed(testing::TestSeed(), "process"));
  for (const int signal : {SIGTERM, SIGINT}) {
    ServerProcess server;
    const v1::AttendRequest request = MakeRequest({}, &random);
    const CallResult result = Call(server.Stub().get(), request);
    EXPECT_TRUE(result.status.ok() && Answers(request, result.reply));
    server.process().Signal(signal);
    EXPECT_EQ(server.process().Wait(), 0) << server.process().Stderr();
    EXPECT_EQ(server.process().Stdout(), "");
  }
}

TEST(ProcessTest, AutoBackendServesAndSaysWhich) {
  Random random(testing::MixSeed(testing::TestSeed(), "auto"));
  ServerProcess server({"--backend=auto"});
  testing::RequestShape shape;
  shape.rows_q = shape.rows_k = 100;
  const v1::AttendRequest request = MakeRequest(shape, &random);
  const CallResult result = Call(server.Stub().get(), request);
  EXPECT_TRUE(result.status.ok() && Answers(request, result.reply))
      << result.status.error_message();
  EXPECT_THAT(server.process().Stderr(), HasSubstr("backend=" + result.reply.stats().backend()));
  EXPECT_EQ(server.Terminate(), 0);
}

TEST(ProcessTest, UnixSocket) {
  Random random(testing::MixSeed(testing::TestSeed(), "unix"));
  const std::string path = absl::StrCat(::testing::TempDir(), "/attend-", getpid(), ".sock");
  ServerProcess server({"--listen=unix:" + path});
  EXPECT_EQ(server.grpc_port(), 0);
  const auto stub = v1::AttentionService::NewStub(
      grpc::CreateChannel("unix:" + path, grpc::InsecureChannelCredentials()));
  EXPECT_TRUE(Call(stub.get(), MakeRequest({}, &random)).status.ok());
  EXPECT_EQ(server.Terminate(), 0);
}

TEST(ProcessTest, DrainDelayServesOnWhileNotReady) {
  Random random(testing::MixSeed(testing::TestSeed(), "delay"));
  ServerProcess server({"--drain-delay=10m"});
  const auto stub = server.Stub();
  EXPECT_EQ(HttpGet(server.http_port(), "/readyz").code, 200);
  server.process().Signal(SIGTERM);
  ASSERT_TRUE(Eventually([&] { return HttpGet(server.http_port(), "/readyz").code == 503; }));
  EXPECT_EQ(server.Metric("attend_ready"), 0);
  EXPECT_TRUE(Call(stub.get(), MakeRequest({}, &random)).status.ok());
  server.process().Signal(SIGTERM);  // a second one does not wait
  EXPECT_TRUE(server.process().Wait().has_value());
}

// Requests that take a while: the reference backend is slow.
v1::AttendRequest Slow(Random* random) {
  testing::RequestShape shape;
  shape.rows_q = shape.rows_k = 1500;
  shape.heads_q = shape.heads_k = 1;
  shape.head_dim = shape.head_dim_v = 64;
  return MakeRequest(shape, random);
}

TEST(ProcessTest, DrainUnderLoadAnswersEverythingAccepted) {
  Random random(testing::MixSeed(testing::TestSeed(), "load"));
  ServerProcess server({"--drain-timeout=60s"});
  const v1::AttendRequest request = Slow(&random);
  std::vector<std::future<CallResult>> calls;
  for (int i = 0; i < 8; ++i) {
    calls.push_back(
        std::async(std::launch::async, [&] { return Call(server.Stub().get(), request); }));
  }
  // Accepted, whether answered already or not; asked in this order none counts twice.
  ASSERT_TRUE(Eventually([&] {
    const double answered =
        server.Metric(R"(attend_requests_total{code="OK",method="Attend"})").value_or(0);
    return answered + server.Metric(R"(attend_in_flight_requests{device="0"})").value_or(0) == 8;
  }));
  EXPECT_EQ(server.Terminate(), 0) << server.process().Stderr();
  for (auto& call : calls) {
    const CallResult result = call.get();
    EXPECT_TRUE(result.status.ok()) << result.status.error_message();
    EXPECT_EQ(result.reply.o().inline_().size(), 1500u * 64 * 4);
  }
}

TEST(ProcessTest, SecondSignalGivesUpPolitely) {
  Random random(testing::MixSeed(testing::TestSeed(), "giveup"));
  ServerProcess server({"--drain-timeout=10m", "--max-batch-tasks=1"});
  const v1::AttendRequest request = Slow(&random);
  std::vector<std::future<CallResult>> calls;
  for (int i = 0; i < 60; ++i) {
    calls.push_back(
        std::async(std::launch::async, [&] { return Call(server.Stub().get(), request); }));
  }
  ASSERT_TRUE(Eventually(
      [&] { return server.Metric(R"(attend_queue_requests{device="0"})").value_or(0) > 40; }));
  server.process().Signal(SIGTERM);
  ASSERT_TRUE(Eventually([&] { return HttpGet(server.http_port(), "/readyz").code != 200; }));
  server.process().Signal(SIGTERM);
  EXPECT_EQ(server.process().Wait(), 1);
  int answered = 0, refused = 0;
  for (auto& call : calls) {
    const CallResult result = call.get();
    ++(result.status.ok() ? answered : refused);
    if (!result.status.ok()) {
      EXPECT_EQ(result.status.error_code(), grpc::StatusCode::UNAVAILABLE);
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_EQ(answered + refused, 60);
}

TEST(ProcessTest, JsonLogsCarryTheRequestId) {
  Random random(testing::MixSeed(testing::TestSeed(), "json"));
  ServerProcess server({"--log-format=json"});
  v1::AttendRequest bad = MakeRequest({}, &random);
  bad.set_request_id("find-me");
  bad.clear_v();
  EXPECT_EQ(Call(server.Stub().get(), bad).status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(server.Terminate(), 0);
  const std::string log = server.process().Stderr();
  EXPECT_THAT(log, HasSubstr(R"("msg":"request refused","request_id":"find-me")"));
  EXPECT_THAT(log, HasSubstr(R"("error":"v: missing")"));
}

TEST(ProcessTest, LogLevelChangesAtRunTime) {
  Random random(testing::MixSeed(testing::TestSeed(), "level"));
  ServerProcess server;
  const auto stub = server.Stub();
  EXPECT_TRUE(Call(stub.get(), MakeRequest({}, &random)).status.ok());
  EXPECT_EQ(testing::Http(server.http_port(),
                          "PUT /log-level HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
                          "Connection: close\r\n\r\ndebug")
                .body,
            "debug\n");
  EXPECT_TRUE(Call(stub.get(), MakeRequest({}, &random)).status.ok());
  EXPECT_EQ(server.Terminate(), 0);
  const std::string log = server.process().Stderr();
  const size_t changed = log.find("log level changed to=debug");
  ASSERT_NE(changed, std::string::npos) << log;
  EXPECT_EQ(log.substr(0, changed).find("request answered"), std::string::npos);
  EXPECT_NE(log.find("request answered", changed), std::string::npos);
}

TEST(ProcessTest, UnencryptedAddressIsWarnedOfOnce) {
  // To the resolver this is 127.0.0.1 too, but not to the eye.
  ServerProcess far({"--listen=0x7f.1:0"});
  EXPECT_EQ(far.Terminate(), 0);
  const std::string log = far.process().Stderr();
  const size_t first = log.find("not encrypted");
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("not encrypted", first + 1), std::string::npos) << log;

  addrinfo* found = nullptr;
  if (getaddrinfo("localhost", nullptr, nullptr, &found) != 0) {
    GTEST_SKIP() << "this host does not know the name localhost";
  }
  freeaddrinfo(found);
  ServerProcess near({"--listen=localhost:0"});
  EXPECT_EQ(near.Terminate(), 0);
  EXPECT_THAT(near.process().Stderr(), ::testing::Not(HasSubstr("not encrypted")));
}

TEST(ProcessTest, FloodOfRefusalsCostsFewLines) {
  Random random(testing::MixSeed(testing::TestSeed(), "flood"));
  ServerProcess server({"--log-lines-per-second=5"});
  const auto stub = server.Stub();
  v1::AttendRequest bad = MakeRequest({}, &random);
  bad.clear_v();
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 2000; ++i) Call(stub.get(), bad);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_EQ(server.Terminate(), 0);
  const int lines = Lines(server.process().Stderr());
  EXPECT_LE(lines, 5 * (seconds + 2) + 10);
  EXPECT_GE(lines, 5);
}

}  // namespace
}  // namespace attend
