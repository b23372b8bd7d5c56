#include "cli/report.h"

#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/json.h"

namespace attend::cli {
namespace {

constexpr std::pair<const char*, double> kPercentiles[] = {
    {"p50", 0.5}, {"p90", 0.9}, {"p95", 0.95}, {"p99", 0.99}, {"p99_9", 0.999}};

double Milliseconds(int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e6; }
double PerSecond(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0; }

// Requests that had company, and the mean size of a batch (each batch counted once).
struct BatchSummary {
  double mean = 0;
  int64_t largest = 0;
  double shared = 0;
};
BatchSummary Summarise(const LoadResult& load) {
  BatchSummary summary;
  double batches = 0;
  int64_t requests = 0, shared = 0;
  for (const auto& [size, count] : load.batch_requests) {
    if (size < 1) continue;
    batches += static_cast<double>(count) / static_cast<double>(size);
    requests += count;
    if (size > 1) shared += count;
    summary.largest = std::max(summary.largest, size);
  }
  if (requests > 0) {
    summary.mean = static_cast<double>(requests) / batches;
    summary.shared = static_cast<double>(shared) / static_cast<double>(requests);
  }
  return summary;
}

std::string Row(const char* name, const Histogram& histogram) {
  std::string row = absl::StrFormat("  %-9s %9.3f", name, histogram.mean() / 1e6);
  for (const auto& [label, share] : kPercentiles) {
    absl::StrAppendFormat(&row, " %9.3f", Milliseconds(histogram.Percentile(share)));
  }
  return absl::StrCat(row, absl::StrFormat(" %9.3f\n", Milliseconds(histogram.max())));
}

void Distribution(JsonWriter& json, const char* name, const Histogram& histogram) {
  json.BeginObject(name);
  json.Field("mean", histogram.mean() / 1e9);
  json.Field("min", static_cast<double>(histogram.min()) / 1e9);
  for (const auto& [label, share] : kPercentiles) {
    json.Field(label, static_cast<double>(histogram.Percentile(share)) / 1e9);
  }
  json.Field("max", static_cast<double>(histogram.max()) / 1e9);
  json.EndObject();
}

}  // namespace

std::string ReportText(const Report& report) {
  const LoadResult& load = report.load;
  const double ok = static_cast<double>(load.ok);
  std::string text = absl::StrFormat("server      %s", report.address);
  if (report.server.has_value()) {
    absl::StrAppendFormat(&text, ", attend %s, %s", report.server->version, report.server->backend);
    for (const client::ServerDevice& device : report.server->devices) {
      absl::StrAppendFormat(&text, ", %s (%s)", device.name, device.architecture);
    }
  }
  absl::StrAppendFormat(&text, "\nseed        %d\n", report.seed);
  absl::StrAppendFormat(&text, "requests    %d sent, %d ok, %d retries, %.2f s\n", load.sent,
                        load.ok, load.retries, load.seconds);
  for (const auto& [code, count] : load.errors) {
    absl::StrAppendFormat(&text, "  error     %d x %s\n", count, load.first_error.at(code));
  }
  absl::StrAppendFormat(&text, "throughput  %.1f requests/s, %.4g query tokens/s, %.3f TFLOP/s\n",
                        PerSecond(ok, load.seconds),
                        PerSecond(static_cast<double>(load.query_tokens), load.seconds),
                        PerSecond(load.flops / 1e12, load.seconds));
  absl::StrAppendFormat(&text, "            %.3f GB/s to the server, %.3f GB/s back\n",
                        PerSecond(static_cast<double>(load.bytes_in) / 1e9, load.seconds),
                        PerSecond(static_cast<double>(load.bytes_out) / 1e9, load.seconds));
  const BatchSummary batches = Summarise(load);
  absl::StrAppendFormat(
      &text, "batches     %.2f requests on average, at most %d; %.0f %% of requests shared one\n",
      batches.mean, batches.largest, batches.shared * 100);
  absl::StrAppend(&text,
                  "time, ms         mean       p50       p90       p95       p99     p99.9       "
                  "max\n");
  absl::StrAppend(&text, Row("latency", load.latency));
  for (size_t i = 0; i < kStageNames.size(); ++i) {
    absl::StrAppend(&text, Row(kStageNames[i], load.stages[i]));
  }
  absl::StrAppend(&text, Row("outside", load.outside));
  if (report.check.answers > 0) {
    absl::StrAppendFormat(
        &text, "checked     %d rows of %d answers: %s, largest error %.2f of what is allowed\n",
        report.check.rows, report.check.answers,
        report.check.wrong == 0 ? "all right" : absl::StrCat(report.check.wrong, " WRONG"),
        report.check.worst);
  } else {
    absl::StrAppend(&text, "checked     nothing\n");
  }
  return text;
}

std::string ReportJson(const Report& report) {
  const LoadResult& load = report.load;
  JsonWriter json;
  json.BeginObject();
  json.Field("schema", 1);
  json.Field("seed", absl::StrCat(report.seed));  // 64 bits do not fit every reader's numbers
  json.Field("address", report.address);
  if (report.server.has_value()) {
    json.BeginObject("server");
    json.Field("version", report.server->version);
    json.Field("backend", report.server->backend);
    json.BeginArray("devices");
    for (const client::ServerDevice& device : report.server->devices) json.Element(device.name);
    json.EndArray();
    json.EndObject();
  }
  json.BeginObject("settings");
  for (const auto& [name, value] : report.settings) json.Field(name, value);
  json.EndObject();
  json.Field("sent", load.sent);
  json.Field("ok", load.ok);
  json.Field("retries", load.retries);
  json.BeginArray("errors");
  for (const auto& [code, count] : load.errors) {
    json.BeginObject();
    json.Field("code", absl::StatusCodeToString(code));
    json.Field("count", count);
    json.Field("first", load.first_error.at(code));
    json.EndObject();
  }
  json.EndArray();
  json.Field("seconds", load.seconds);
  json.BeginObject("throughput");
  json.Field("requests_per_second", PerSecond(static_cast<double>(load.ok), load.seconds));
  json.Field("query_tokens_per_second",
             PerSecond(static_cast<double>(load.query_tokens), load.seconds));
  json.Field("flops_per_second", PerSecond(load.flops, load.seconds));
  json.Field("bytes_in_per_second", PerSecond(static_cast<double>(load.bytes_in), load.seconds));
  json.Field("bytes_out_per_second", PerSecond(static_cast<double>(load.bytes_out), load.seconds));
  json.EndObject();
  const BatchSummary batches = Summarise(load);
  json.BeginObject("batches");
  json.Field("mean_requests", batches.mean);
  json.Field("max_requests", batches.largest);
  json.Field("shared_share", batches.shared);
  json.BeginObject("requests_by_batch_size");
  for (const auto& [size, count] : load.batch_requests) json.Field(absl::StrCat(size), count);
  json.EndObject();
  json.EndObject();
  Distribution(json, "latency_seconds", load.latency);
  json.BeginObject("server_seconds");
  for (size_t i = 0; i < kStageNames.size(); ++i)
    Distribution(json, kStageNames[i], load.stages[i]);
  json.EndObject();
  Distribution(json, "outside_seconds", load.outside);
  json.BeginObject("check");
  json.Field("answers", report.check.answers);
  json.Field("rows", report.check.rows);
  json.Field("wrong", report.check.wrong);
  json.Field("worst_share_of_tolerance", report.check.worst);
  json.Field("first_wrong", report.check.first_wrong);
  json.EndObject();
  json.BeginArray("failures");
  for (const std::string& failure : report.failures) json.Element(failure);
  json.EndArray();
  json.EndObject();
  return json.text();
}

absl::Status WriteTrace(const std::string& path, const std::vector<TraceRow>& rows) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "w"), &std::fclose);
  if (file == nullptr) return absl::NotFoundError(absl::StrCat(path, ": cannot be written"));
  std::fputs(
      "index,request_id,code,attempts,dtype,rows,kv_rows,heads,kv_heads,head_dim,causal,"
      "scheduled_seconds,sent_seconds,done_seconds,decode_seconds,queue_seconds,copy_in_seconds,"
      "kernel_seconds,copy_out_seconds,total_seconds,batch_requests,batch_tasks,batch_tokens,"
      "backend,device\n",
      file.get());
  for (const TraceRow& row : rows) {
    const RequestSpec& spec = row.spec;
    const client::ServingStats& stats = row.stats;
    const std::string line = absl::StrFormat(
        "%d,%s,%s,%d,%s,%d,%d,%d,%d,%d,%d,%.9f,%.9f,%.9f,%.9f,%.9f,%.9f,%.9f,%.9f,%.9f,%d,%d,%d,"
        "%s,%d\n",
        row.index, row.request_id, absl::StatusCodeToString(row.code), row.attempts,
        std::string(attend::Name(spec.dtype)), spec.rows, spec.kv_rows, spec.heads, spec.kv_heads,
        spec.head_dim, static_cast<int>(spec.causal), row.scheduled_seconds, row.sent_seconds,
        row.done_seconds, stats.decode_seconds, stats.queue_seconds, stats.copy_in_seconds,
        stats.kernel_seconds, stats.copy_out_seconds, stats.total_seconds, stats.batch_requests,
        stats.batch_tasks, stats.batch_tokens, stats.backend, stats.device);
    std::fputs(line.c_str(), file.get());
  }
  const bool bad = std::ferror(file.get()) != 0;
  if (std::fclose(file.release()) != 0 || bad) {
    return absl::UnknownError(absl::StrCat(path, ": could not be written wholly"));
  }
  return absl::OkStatus();
}

}  // namespace attend::cli
