// The metrics page of a live server, as Prometheus' own tools see it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/testing/server_fixture.h"
#include "tests/testing/server_process.h"

namespace attend {
namespace {

using testing::Call;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::HttpGet;
using testing::MakeRequest;
using testing::Process;
using testing::Random;
using testing::ServerProcess;

bool Installed(const std::string& program) {
  return std::system(("command -v " + program + " >/dev/null 2>&1").c_str()) == 0;
}

// Some of everything: answers, refusals, a batch.
void MakeTraffic(const ServerProcess& server) {
  Random random(testing::MixSeed(testing::TestSeed(), "scrape"));
  const auto stub = server.Stub();
  const v1::AttendRequest request = MakeRequest({}, &random);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(Call(stub.get(), request).status.ok());
  v1::AttendRequest bad = request;
  bad.clear_k();
  Call(stub.get(), bad);
}

TEST(ScrapeTest, PromtoolFindsNothingToCriticise) {
  if (!Installed("promtool")) GTEST_SKIP() << "promtool is not installed";
  ServerProcess server;
  MakeTraffic(server);
  const std::string path = absl::StrCat(::testing::TempDir(), "/scrape-", getpid(), ".txt");
  std::ofstream(path) << HttpGet(server.http_port(), "/metrics").body;
  Process promtool({"sh", "-c", "promtool check metrics < " + path});
  EXPECT_EQ(promtool.Wait(), 0);
  EXPECT_EQ(promtool.Stdout() + promtool.Stderr(), "");
  unlink(path.c_str());
}

TEST(ScrapeTest, PrometheusScrapesIt) {
  if (!Installed("prometheus")) GTEST_SKIP() << "prometheus is not installed";
  ServerProcess server;
  MakeTraffic(server);
  const std::string directory = absl::StrCat(::testing::TempDir(), "/prometheus-", getpid());
  ASSERT_EQ(std::system(("mkdir -p " + directory).c_str()), 0);
  std::ofstream(directory + "/prometheus.yml")
      << "global: {scrape_interval: 200ms, scrape_timeout: 200ms}\n"
         "scrape_configs:\n"
         "- job_name: attend\n"
         "  static_configs: [{targets: ['127.0.0.1:"
      << server.http_port() << "']}]\n";
  // It cannot take port 0: try some.
  std::unique_ptr<Process> prometheus;
  int port = 0;
  for (int attempt = 0; attempt < 5 && port == 0; ++attempt) {
    const int candidate = 20000 + (getpid() * 7 + attempt * 101) % 20000;
    prometheus = std::make_unique<Process>(
        std::vector<std::string>{"prometheus", "--config.file=" + directory + "/prometheus.yml",
                                 "--storage.tsdb.path=" + directory + "/data",
                                 absl::StrCat("--web.listen-address=127.0.0.1:", candidate)});
    const bool up = Eventually(
        [&] { return !prometheus->Running() || HttpGet(candidate, "/-/ready").code == 200; });
    if (up && prometheus->Running()) port = candidate;
  }
  ASSERT_NE(port, 0) << prometheus->Stderr();
  const auto query = [&](const std::string& expression) {
    return HttpGet(port, "/api/v1/query?query=" + expression).body;
  };
  EXPECT_TRUE(Eventually([&] { return absl::StrContains(query("up"), "\"1\"]"); })) << query("up");
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(query("attend_requests_total%7Bcode=%22OK%22,method=%22Attend%22%7D"),
                             "\"10\"]");
  }));
  // A scrape that came too late on a busy host leaves the series stale until the next one.
  EXPECT_TRUE(Eventually([&] {
    return absl::StrContains(query("attend_rejected_total%7Breason=%22invalid%22%7D"), "\"1\"]");
  }));
  prometheus.reset();
  ASSERT_EQ(std::system(("rm -rf " + directory).c_str()), 0);
}

}  // namespace
}  // namespace attend
