#include "server/ops/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <regex>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "kernels/errors.h"
#include "tests/testing/fake_backend.h"

namespace attend {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class MetricsTest : public ::testing::Test {
 protected:
  std::shared_ptr<testing::FakeDevice> device_ = std::make_shared<testing::FakeDevice>();
  std::unique_ptr<Backend> backend_ = testing::MakeFakeBackend(device_);
  Metrics metrics_{*backend_, {0, 1}};
};

TEST_F(MetricsTest, EverySeriesExistsFromTheStart) {
  const std::string page = metrics_.Render();
  for (const char* line :
       {R"(attend_requests_total{code="OK",method="Attend"} 0)",
        R"(attend_requests_total{code="UNAVAILABLE",method="AttendStream"} 0)",
        R"(attend_rejected_total{reason="queue_full"} 0)",
        R"(attend_rejected_total{reason="memory"} 0)", R"(attend_cancelled_total{stage="queue"} 0)",
        R"(attend_expired_total{stage="queue"} 0)",
        R"(attend_batches_total{backend="fake",device="1",reason="full"} 0)",
        R"(attend_kernel_launches_total{kernel="fake"} 0)",
        R"(attend_allocation_failures_total{pool="staging"} 0)",
        R"(attend_flops_total{backend="fake"} 0)", "attend_score_matrix_avoided_bytes_total 0",
        R"(attend_request_duration_seconds_count{method="Attend"} 0)",
        R"(attend_request_stage_duration_seconds_count{stage="copy_in"} 0)",
        "attend_batch_requests_count 0", "attend_ready 0"}) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat(line, "\n")));
  }
}

TEST_F(MetricsTest, ABatchIsCounted) {
  BatchRecord record;
  record.device = 1;
  record.reason = BatchReason::kFull;
  record.requests = 3;
  record.query_tokens = 70;
  record.kv_tokens = 90;
  record.flops = 1e12;
  record.avoided_bytes = 4096;
  record.report.kernel = {1.0, 1.5};
  record.report.bytes_in = 100;
  record.report.bytes_out = 50;
  record.report.workspace_bytes = 512;
  record.report.launches = {{"fake", 2}, {"unheard_of", 1}};
  metrics_.OnBatch(record);
  record.report.workspace_bytes = 256;
  metrics_.OnBatch(record);
  const std::string page = metrics_.Render();
  for (const char* line :
       {R"(attend_batches_total{backend="fake",device="1",reason="full"} 2)",
        R"(attend_batches_total{backend="fake",device="0",reason="full"} 0)",
        "attend_query_tokens_total 140", "attend_kv_tokens_total 180",
        R"(attend_flops_total{backend="fake"} 2000000000000)",
        "attend_score_matrix_avoided_bytes_total 8192",
        R"(attend_device_busy_seconds_total{device="1"} 1)",
        R"(attend_device_copy_bytes_total{device="1",direction="in"} 200)",
        R"(attend_kernel_launches_total{kernel="fake"} 4)",
        R"(attend_workspace_bytes{device="1"} 256)",
        R"(attend_workspace_peak_bytes{device="1"} 512)", "attend_workspace_bytes_total 768",
        R"(attend_batch_requests_bucket{le="4"} 2)", R"(attend_batch_requests_bucket{le="2"} 0)"}) {
    EXPECT_THAT(page, HasSubstr(absl::StrCat(line, "\n")));
  }
  EXPECT_THAT(page, Not(HasSubstr("unheard_of")));
}

TEST_F(MetricsTest, NanAndNegativeTimesDoNotPoisonSums) {
  metrics_.OnQueueTime(std::numeric_limits<double>::quiet_NaN());
  metrics_.OnQueueTime(-1);
  metrics_.OnQueueTime(0.5);
  EXPECT_THAT(metrics_.Render(), HasSubstr("attend_queue_duration_seconds_sum 0.5\n"));
}

TEST_F(MetricsTest, RequestsByCodeAndReason) {
  RequestRecord record;
  record.method = Method::kAttendStream;
  const std::pair<absl::Status, const char*> rows[] = {
      {WithReason(absl::ResourceExhaustedError(""), "QUEUE_FULL"), "queue_full"},
      {WithReason(absl::ResourceExhaustedError(""), "MEMORY"), "memory"},
      {WithReason(absl::ResourceExhaustedError(""), "CLIENT_SHARE"), "client_share"},
      {WithReason(absl::InvalidArgumentError(""), "TOO_LARGE"), "too_large"},
      {WithReason(absl::UnavailableError(""), "DRAINING"), "draining"},
      {WithReason(absl::UnavailableError(""), "DEVICE_UNHEALTHY"), "device_unhealthy"},
      {absl::InvalidArgumentError(""), "invalid"},
      {absl::UnimplementedError(""), "unsupported"},
      {absl::DeadlineExceededError(""), "deadline"},
      {WithReason(absl::UnavailableError(""), "A_REASON_OF_TOMORROW"), "other"},
  };
  for (const auto& [status, reason] : rows) {
    metrics_.OnRequestStart(record.method);
    record.status = status;
    metrics_.OnRequestEnd(record);
    EXPECT_THAT(metrics_.Render(),
                HasSubstr(absl::StrCat("attend_rejected_total{reason=\"", reason, "\"} 1\n")));
  }
  for (const absl::Status& status : {absl::CancelledError(""), absl::InternalError("")}) {
    metrics_.OnRequestStart(record.method);  // given up or failed, not refused
    record.status = status;
    metrics_.OnRequestEnd(record);
  }
  const std::string page = metrics_.Render();
  EXPECT_THAT(page, HasSubstr(R"(attend_rejected_total{reason="other"} 1)"));
  EXPECT_THAT(page, HasSubstr(R"(attend_requests_total{code="INTERNAL",method="AttendStream"} 1)"));
  EXPECT_THAT(page, HasSubstr(R"(attend_requests_in_flight{method="AttendStream"} 0)"));
}

TEST_F(MetricsTest, EnginesAreReadWhileTheyAreWatched) {
  EXPECT_THAT(metrics_.Render(), Not(HasSubstr("attend_queue_requests")));
  std::vector<std::unique_ptr<Engine>> engines;
  EngineOptions options;
  options.staging_initial_bytes = 1 << 20;
  options.staging_slab_bytes = 1 << 20;
  engines.push_back(Engine::Create(std::move(backend_), options, &metrics_).value());
  const EngineGroup group(std::move(engines));
  metrics_.Watch(&group, options);
  const std::string page = metrics_.Render();
  EXPECT_THAT(page, HasSubstr("attend_queue_requests{device=\"0\"} 0\n"));
  EXPECT_THAT(page, HasSubstr("attend_pinned_memory_reserved_bytes{device=\"0\"} 1048576\n"));
  EXPECT_THAT(page, HasSubstr("attend_queue_limit_bytes{device=\"0\"} 4294967296\n"));
  EXPECT_THAT(page, HasSubstr("attend_device_info{"));
  metrics_.Watch(nullptr, options);
  EXPECT_THAT(metrics_.Render(), Not(HasSubstr("attend_queue_requests")));
}

TEST_F(MetricsTest, ProcessMetrics) {
  const std::string page = metrics_.Render();
  for (const char* name : {"process_cpu_seconds_total", "process_resident_memory_bytes",
                           "process_open_fds", "process_max_fds", "process_start_time_seconds",
                           "process_threads", "process_virtual_memory_bytes"}) {
    std::smatch match;
    ASSERT_TRUE(std::regex_search(page, match, std::regex(absl::StrCat("\n", name, " (.*)\n"))));
    EXPECT_GT(std::stod(match[1]), 0) << name;
  }
}

// The serializer does not escape help texts, and a name announced twice breaks the page.
TEST_F(MetricsTest, HelpIsPlainAndNamesAreUnique) {
  std::istringstream page(metrics_.Render());
  std::set<std::string> names;
  std::string line;
  while (std::getline(page, line)) {
    for (const char c : line) ASSERT_TRUE(c >= 0x20 && c < 0x7f && c != '\\') << line;
    if (line.rfind("# HELP ", 0) != 0) continue;
    const std::string name = line.substr(7, line.find(' ', 7) - 7);
    EXPECT_TRUE(names.insert(name).second) << name << " twice";
    EXPECT_TRUE(name.rfind("attend_", 0) == 0 || name.rfind("process_", 0) == 0) << name;
  }
  EXPECT_GT(names.size(), 30u);
}

}  // namespace
}  // namespace attend
