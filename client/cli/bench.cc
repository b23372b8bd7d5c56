// attend bench: puts load on a server, measures it and checks its answers.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/command.h"
#include "cli/load.h"
#include "cli/report.h"
#include "cli/workload.h"

namespace attend::cli {
namespace {

struct BenchFlags {
  LoadOptions load;
  WorkloadOptions workload;
  std::optional<uint64_t> seed;
  std::string arrivals = "poisson";
  int64_t warm_up = 32;
  int senders = 0;
  bool check = true;
  bool allow_errors = false;
  std::optional<std::chrono::nanoseconds> max_p99;
  std::string trace;
  std::string output = "text";
  std::string progress = "auto";
};

void AddFlags(BenchFlags& bench, FlagSet& flags) {
  flags.Group("Load");
  flags.Add("requests", &bench.load.requests, "N", "requests to measure; 0: until --duration");
  flags.Add("duration", &bench.load.duration, "TIME", "stop sending after this; 0s: no limit");
  flags.Add("in-flight", &bench.load.in_flight, "N",
            "closed loop: requests in flight; open loop: the most at once");
  flags.Add("rate", &bench.load.rate, "REQUESTS/S",
            "open loop: send at this rate, whatever the server does; 0: closed loop");
  flags.Add("arrivals", &bench.arrivals, "poisson|constant", "gaps of the open loop");
  flags.Add("warm-up", &bench.warm_up, "N", "requests before measuring");
  flags.Add("senders", &bench.senders, "N",
            "threads that copy and send; 0: a quarter of the processors, 1 to 8");
  flags.Group("Requests (a list \"64,128\", or a range \"64:2048\", each octave as likely)");
  flags.Add("rows", &bench.workload.rows, "N", "query rows");
  flags.Add("kv-rows", &bench.workload.kv_rows, "N", "keys; as many as rows when not given");
  flags.Add("heads", &bench.workload.heads, "N", "query heads");
  flags.Add("group", &bench.workload.group, "N", "query heads that share one kv head");
  flags.Add("head-dims", &bench.workload.head_dim, "N", "D, the same for q, k and v");
  flags.Add("dtypes", &bench.workload.dtypes, "NAMES", "of fp32, fp16, bf16; each as likely");
  flags.Add("causal", &bench.workload.causal_share, "SHARE", "of the requests that are causal");
  flags.Add("lse", &bench.workload.lse, "", "ask for the log-sum-exp too");
  flags.Add("seed", &bench.seed, "N", "of shapes, data and arrivals; a fresh one when not given");
  flags.Group("Checks");
  flags.Add("check", &bench.check, "", "check sampled rows against double-precision attention");
  flags.Add("check-share", &bench.load.check_share, "SHARE", "of the answers to check");
  flags.Add("check-rows", &bench.load.check_rows, "N", "rows of two heads of each to check");
  flags.Add("allow-errors", &bench.allow_errors, "", "failed requests do not fail the run");
  flags.Add("max-p99", &bench.max_p99, "TIME", "fail when the 99th percentile is above");
  flags.Group("Output");
  flags.Add("output", &bench.output, "text|json", "form of the result on standard output");
  flags.Add("trace", &bench.trace, "FILE", "store one line of CSV for each request");
  flags.Add("progress", &bench.progress, "auto|always|never",
            "bar on standard error; auto: on a terminal");
}

// A line when the flags are wrong, or nothing.
std::string CheckFlags(BenchFlags& bench) {
  LoadOptions& load = bench.load;
  if (load.requests < 0) return "--requests: is a number from 0 up";
  if (load.requests == 0 && load.duration.count() == 0) {
    return "--requests or --duration: one of them must end the run";
  }
  if (load.in_flight < 1 || load.in_flight > 65536) return "--in-flight: is 1 to 65536";
  if (!(load.rate >= 0) || load.rate > 1e7) return "--rate: is 0 to 1e7 requests a second";
  if (bench.warm_up < 0) return "--warm-up: is a number from 0 up";
  if (bench.senders < 0 || bench.senders > 256) return "--senders: is 0 to 256";
  if (bench.arrivals != "poisson" && bench.arrivals != "constant") {
    return "--arrivals: is poisson or constant";
  }
  if (!(load.check_share >= 0 && load.check_share <= 1)) return "--check-share: is 0 to 1";
  if (load.check_rows < 1) return "--check-rows: is a number from 1 up";
  if (bench.output != "text" && bench.output != "json") return "--output: is text or json";
  if (bench.progress != "auto" && bench.progress != "always" && bench.progress != "never") {
    return "--progress: is auto, always or never";
  }
  load.arrivals = bench.arrivals == "poisson" ? Arrivals::kPoisson : Arrivals::kConstant;
  load.keep_trace = !bench.trace.empty();
  if (!bench.check) load.check_share = 0;
  // A quarter: the rest is for gRPC's own threads, and often for the server.
  const auto processors = static_cast<int>(std::thread::hardware_concurrency());
  load.senders = bench.senders > 0 ? bench.senders : std::clamp(processors / 4, 1, 8);
  return "";
}

class ProgressBar {
 public:
  ProgressBar(const std::string& mode, const LoadOptions& load)
      : on_(mode == "always" || (mode == "auto" && isatty(STDERR_FILENO) != 0)), load_(load) {}
  ~ProgressBar() {
    if (shown_) std::fputs("\r\033[K", stderr);
  }

  void Show(const Progress& progress) {
    if (!on_) return;
    constexpr int kWidth = 30;
    double share = 0;
    if (load_.requests > 0) {
      share = static_cast<double>(progress.done) / static_cast<double>(load_.requests);
    }
    if (load_.duration.count() > 0) {
      const std::chrono::duration<double> whole = load_.duration;
      share = std::max(share, progress.seconds / whole.count());
    }
    const int full = static_cast<int>(std::clamp(share, 0.0, 1.0) * kWidth);
    std::fprintf(stderr, "\r\033[K[%s%s] %lld requests, %.0f/s, %lld errors",
                 std::string(static_cast<size_t>(full), '#').c_str(),
                 std::string(static_cast<size_t>(kWidth - full), '.').c_str(),
                 static_cast<long long>(progress.done),
                 static_cast<double>(progress.done) / std::max(progress.seconds, 1e-9),
                 static_cast<long long>(progress.errors));
    std::fflush(stderr);
    shown_ = true;
  }

 private:
  const bool on_;
  const LoadOptions load_;
  bool shown_ = false;
};

CheckSummary CheckSamples(const std::vector<Sample>& samples) {
  CheckSummary summary;
  summary.answers = static_cast<int64_t>(samples.size());
  std::mutex mutex;
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
    threads.emplace_back([&] {
      for (size_t at = next++; at < samples.size(); at = next++) {
        const Verdict verdict = Check(samples[at]);
        std::lock_guard lock(mutex);
        summary.rows += static_cast<int64_t>(samples[at].heads.size() * samples[at].rows.size());
        summary.worst = std::max(summary.worst, verdict.worst);
        if (verdict.right) continue;
        if (summary.wrong++ == 0) summary.first_wrong = verdict.what;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return summary;
}

std::vector<std::string> Failures(const BenchFlags& bench, const Report& report) {
  std::vector<std::string> failures;
  const LoadResult& load = report.load;
  if (load.ok == 0) failures.push_back("no request succeeded");
  if (load.ok < load.sent && !bench.allow_errors) {
    failures.push_back(absl::StrCat(load.sent - load.ok, " of ", load.sent, " requests failed"));
  }
  if (report.check.wrong > 0) {
    failures.push_back(
        absl::StrCat(report.check.wrong, " of ", report.check.answers,
                     " checked answers are wrong; the first: ", report.check.first_wrong));
  }
  if (bench.max_p99 && load.latency.Percentile(0.99) > bench.max_p99->count()) {
    failures.push_back(absl::StrCat("the 99th percentile is over ", FormatValue(*bench.max_p99)));
  }
  return failures;
}

int Bench(BenchFlags& bench, const FlagSet& flags, const ConnectionFlags& connection,
          client::Client& client) {
  Report report;
  report.seed =
      bench.seed.value_or((uint64_t{std::random_device{}()} << 32) | std::random_device{}());
  report.address = connection.address;
  report.settings = flags.Settings();
  absl::StatusOr<std::unique_ptr<Workload>> workload = Workload::Make(bench.workload, report.seed);
  if (!workload.ok()) return Fail(kExitUsage, std::string(workload.status().message()));

  const absl::StatusOr<client::ServerInfo> info = client.GetServerInfo(std::chrono::seconds(5));
  if (!info.ok()) {
    return Fail(kExitFailure, absl::StrCat(connection.address, ": ", Describe(info.status())));
  }
  report.server = *info;
  const int64_t limit = info->limits.max_receive_message_bytes;
  if (limit > 0 && (*workload)->max_bytes_in() > limit) {
    std::fprintf(stderr,
                 "attend: the largest requests (%lld bytes) are over the server's limit of %lld "
                 "bytes and will be refused\n",
                 static_cast<long long>((*workload)->max_bytes_in()),
                 static_cast<long long>(limit));
  }

  if (bench.warm_up > 0) {
    LoadOptions warm_up = bench.load;
    warm_up.requests = bench.warm_up;
    warm_up.duration = std::chrono::nanoseconds(0);
    warm_up.rate = 0;
    warm_up.check_share = 0;
    warm_up.keep_trace = false;
    warm_up.first_index = uint64_t{1} << 63;  // not those that are measured
    RunLoad(client, **workload, warm_up, [](const Progress&) {});
  }
  {
    ProgressBar bar(bench.progress, bench.load);
    report.load = RunLoad(client, **workload, bench.load,
                          [&bar](const Progress& progress) { bar.Show(progress); });
  }
  report.check = CheckSamples(report.load.samples);
  report.failures = Failures(bench, report);
  std::fputs(bench.output == "json" ? absl::StrCat(ReportJson(report), "\n").c_str()
                                    : ReportText(report).c_str(),
             stdout);
  if (!bench.trace.empty()) {
    if (absl::Status status = WriteTrace(bench.trace, report.load.trace); !status.ok()) {
      report.failures.emplace_back(status.message());
    }
  }
  for (const std::string& failure : report.failures) Fail(kExitFailure, failure);
  return report.failures.empty() ? kExitOk : kExitFailure;
}

}  // namespace

int BenchCommand(absl::Span<char* const> arguments) {
  BenchFlags bench;
  ConnectionFlags connection;
  FlagSet flags("attend bench",
                "Puts load on a server, measures it and checks its answers.\n"
                "Exit codes: 0 done, 1 errors, wrong answers or a missed --max-p99, 2 usage.");
  AddFlags(bench, flags);
  connection.AddTo(flags);
  if (auto exit = ParseOrExit(flags, arguments)) return *exit;
  if (const std::string what = CheckFlags(bench); !what.empty()) return Fail(kExitUsage, what);
  auto client = connection.MakeClient();
  if (!client.ok()) return Fail(kExitUsage, Describe(client.status()));
  return Bench(bench, flags, connection, **client);
}

}  // namespace attend::cli
