// Whole runs of the load generator against scripted servers.

#include "cli/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/client/bench_fixtures.h"
#include "tests/client/fake_service.h"

namespace attend::cli {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<client::Client> Connect(const client::FakeServer& server) {
  client::ClientOptions options;
  options.channels = 2;
  options.retry.max_attempts = 1;
  return *client::Client::Create(server.target(), options);
}

void NoShow(const Progress&) {}

TEST(LoadTest, ClosedLoopSendsExactlyWhatItWasAskedFor) {
  client::FakeServer server(client::EchoHandler);
  const auto workload = *Workload::Make(SmallWorkload(), FreshSeed());
  LoadOptions options;
  options.requests = 137;
  options.in_flight = 7;
  options.senders = 2;
  options.keep_trace = true;
  options.check_share = 0.5;
  const LoadResult result = RunLoad(*Connect(server), *workload, options, NoShow);
  EXPECT_EQ(result.sent, 137);
  EXPECT_EQ(result.ok, 137);
  EXPECT_EQ(server.calls(), 137);
  EXPECT_EQ(result.latency.count(), 137);
  EXPECT_EQ(result.batch_requests.at(3), 137);
  EXPECT_GT(result.samples.size(), 20u);
  EXPECT_LT(result.samples.size(), 117u);
  ASSERT_EQ(result.trace.size(), 137u);
  std::vector<bool> seen(137);
  int64_t tokens = 0, in = 0;
  for (const TraceRow& row : result.trace) {
    ASSERT_LT(row.index, 137u);
    EXPECT_FALSE(seen[row.index]);
    seen[row.index] = true;
    tokens += row.spec.rows;
    in += row.spec.bytes_in();
    EXPECT_LE(row.scheduled_seconds, row.sent_seconds);
    EXPECT_LE(row.sent_seconds, row.done_seconds);
    EXPECT_FALSE(row.request_id.empty());
  }
  EXPECT_EQ(result.query_tokens, tokens);
  EXPECT_EQ(result.bytes_in, in);
}

TEST(LoadTest, NeverHasMoreInFlightThanAllowed) {
  client::FakeServer server(client::EchoHandler);
  server.Hold();
  const auto workload = *Workload::Make(SmallWorkload(), FreshSeed());
  LoadOptions options;
  options.requests = 20;
  options.in_flight = 6;
  std::thread releaser([&server] {
    while (server.calls() < 6) std::this_thread::yield();
    server.Release();
  });
  const auto client = Connect(server);
  const LoadResult result = RunLoad(*client, *workload, options, NoShow);
  releaser.join();
  EXPECT_EQ(result.ok, 20);
}

// A server that answers nothing for a while must show in the latencies of all requests that were
// due meanwhile, although only two could be in flight.
TEST(LoadTest, OpenLoopCountsFromTheSchedule) {
  client::FakeServer server(client::EchoHandler);
  server.Hold();
  const auto workload = *Workload::Make(SmallWorkload(), FreshSeed());
  LoadOptions options;
  options.requests = 40;
  options.in_flight = 2;
  options.rate = 1000;
  options.arrivals = Arrivals::kConstant;
  options.keep_trace = true;
  const auto client = Connect(server);
  const auto start = std::chrono::steady_clock::now();
  std::chrono::nanoseconds stalled{0};
  std::thread releaser([&] {
    const auto until = start + std::chrono::milliseconds(300);
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
    stalled = std::chrono::steady_clock::now() - start;
    server.Release();
  });
  const LoadResult result = RunLoad(*client, *workload, options, NoShow);
  releaser.join();
  EXPECT_EQ(result.ok, 40);
  // Requests were due at 0 to 39 ms and none could end before 300 ms.
  EXPECT_GE(result.latency.min(), 255'000'000);
  for (const TraceRow& row : result.trace) {
    EXPECT_NEAR(row.scheduled_seconds, static_cast<double>(row.index) / 1000, 1e-9);
  }
}

TEST(LoadTest, CountsErrorsByCode) {
  std::atomic<int> calls{0};
  client::FakeServer server([&](const v1::AttendRequest& request, v1::AttendResponse* response) {
    if (calls++ % 4 == 0) {
      return client::RichError(grpc::StatusCode::INTERNAL, "kernel failed", "KERNEL", "");
    }
    return client::EchoHandler(request, response);
  });
  const auto workload = *Workload::Make(SmallWorkload(), FreshSeed());
  LoadOptions options;
  options.requests = 40;
  options.in_flight = 4;
  const LoadResult result = RunLoad(*Connect(server), *workload, options, NoShow);
  EXPECT_EQ(result.sent, 40);
  EXPECT_EQ(result.ok, 30);
  EXPECT_EQ(result.errors.at(absl::StatusCode::kInternal), 10);
  EXPECT_THAT(result.first_error.at(absl::StatusCode::kInternal), HasSubstr("kernel failed"));
}

TEST(LoadTest, DurationEndsARun) {
  client::FakeServer server(client::EchoHandler);
  const auto workload = *Workload::Make(SmallWorkload(), FreshSeed());
  for (const double rate : {0.0, 500.0}) {
    LoadOptions options;
    options.requests = 0;
    options.duration = std::chrono::milliseconds(100);
    options.rate = rate;
    const LoadResult result = RunLoad(*Connect(server), *workload, options, NoShow);
    EXPECT_GT(result.ok, 0);
    EXPECT_EQ(result.ok, result.sent);
  }
}

}  // namespace
}  // namespace attend::cli
