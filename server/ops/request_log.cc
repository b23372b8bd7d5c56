#include "server/ops/request_log.h"

#include <optional>
#include <string>
#include <vector>

#include "kernels/errors.h"
#include "server/ops/log.h"
#include "server/rpc/error_reply.h"

namespace attend {

RequestLog::RequestLog(const LogOptions& options)
    : log_answered_(options.requests),
      refused_(options.lines_per_second),
      answered_(options.lines_per_second) {}

void RequestLog::Write(const RequestRecord& record) {
  const bool ok = record.status.ok();
  if (ok && !log_answered_ && GetLogLevel() > LogLevel::kDebug) return;
  const std::optional<int64_t> left_out = (ok ? answered_ : refused_).Admit(Clock::now());
  if (!left_out) return;
  // A failure of ours is an error; what a client did wrong, or the load, is worth a warning; a
  // client that went away is neither.
  LogLevel level = LogLevel::kWarn;
  if (ok) level = log_answered_ ? LogLevel::kInfo : LogLevel::kDebug;
  if (record.status.code() == absl::StatusCode::kCancelled) level = LogLevel::kInfo;
  if (record.status.code() == absl::StatusCode::kInternal) level = LogLevel::kError;

  const std::string message(record.status.message());
  const std::optional<std::string> reason = ReasonOf(record.status);
  std::vector<LogField> fields = {
      {"request_id", record.request_id}, {"method", Name(record.method)},
      {"client", record.client},         {"code", CodeName(record.status.code())},
      {"seconds", record.total_seconds},
  };
  if (ok) {
    fields.push_back({"queue_seconds", record.report.queue_seconds});
    fields.push_back({"kernel_seconds", record.report.kernel_seconds});
    fields.push_back({"query_tokens", record.query_tokens});
    fields.push_back({"batch_requests", record.report.batch_requests});
  } else {
    if (reason) fields.push_back({"reason", *reason});
    fields.push_back({"error", message});
  }
  if (*left_out > 0) fields.push_back({"lines_left_out", *left_out});
  Log(level, ok ? "request answered" : "request refused", fields);
}

void RequestLog::Unauthenticated() {
  const std::optional<int64_t> left_out = refused_.Admit(Clock::now());
  if (!left_out) return;
  std::vector<LogField> fields = {{"code", "UNAUTHENTICATED"}};
  if (*left_out > 0) fields.push_back({"lines_left_out", *left_out});
  Log(LogLevel::kWarn, "call refused", fields);
}

void RequestLog::RefusedConnection(ConnectionLimit limit, const std::string& client) {
  const std::optional<int64_t> left_out = refused_.Admit(Clock::now());
  if (!left_out) return;
  std::vector<LogField> fields = {{"client", client}, {"limit", Name(limit)}};
  if (*left_out > 0) fields.push_back({"lines_left_out", *left_out});
  Log(LogLevel::kWarn,
      limit == ConnectionLimit::kMemory ? "connection ended" : "connection refused", fields);
}

}  // namespace attend
