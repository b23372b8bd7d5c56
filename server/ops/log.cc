#include "server/ops/log.h"

#include <atomic>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "spdlog/async.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace attend {
namespace {

constexpr size_t kQueueLines = 8192;

struct Logger {
  LogFormat format;
  std::shared_ptr<spdlog::details::thread_pool> pool;
  std::shared_ptr<spdlog::async_logger> logger;
};
// Whoever logs holds it meanwhile: gRPC's threads may log until the process ends.
std::atomic<std::shared_ptr<const Logger>> instance;
std::atomic<LogLevel> current_level{LogLevel::kOff};

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      break;
  }
  return spdlog::level::off;
}

// JSON string escapes, also for quoted text: one line stays one line, whatever a client sent.
void AppendQuoted(std::string_view text, std::string* out) {
  out->push_back('"');
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (c == '\n') {
      out->append("\\n");
    } else if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) {
      absl::StrAppendFormat(out, "\\u%04x", static_cast<unsigned char>(c));
    } else {
      out->push_back(c);
    }
  }
  out->push_back('"');
}

bool NeedsQuotes(std::string_view text) {
  if (text.empty()) return true;
  for (const char c : text) {
    if (c <= 0x20 || c >= 0x7f || c == '"' || c == '\\' || c == '=') return true;
  }
  return false;
}

void AppendValue(LogFormat format, const LogField& field, std::string* out) {
  if (const auto* text = std::get_if<std::string_view>(&field.value)) {
    if (format == LogFormat::kJson || NeedsQuotes(*text)) {
      AppendQuoted(*text, out);
    } else {
      out->append(*text);
    }
  } else if (const auto* integer = std::get_if<int64_t>(&field.value)) {
    absl::StrAppendFormat(out, "%d", *integer);
  } else {
    const double number = std::get<double>(field.value);
    if (format == LogFormat::kJson && !std::isfinite(number)) {
      out->append("null");
    } else {
      absl::StrAppendFormat(out, "%.6g", number);
    }
  }
}

}  // namespace

std::string_view Name(LogLevel level) {
  constexpr std::string_view kNames[] = {"debug", "info", "warn", "error", "off"};
  return kNames[static_cast<int>(level)];
}

bool ParseLogLevel(std::string_view name, LogLevel* level) {
  for (LogLevel each :
       {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarn, LogLevel::kError, LogLevel::kOff}) {
    if (name == Name(each)) {
      *level = each;
      return true;
    }
  }
  return false;
}

void StartLog(LogFormat format, LogLevel level) {
  StopLog();
  auto pool = std::make_shared<spdlog::details::thread_pool>(kQueueLines, 1);
  auto logger = std::make_shared<spdlog::async_logger>(
      "attend", std::make_shared<spdlog::sinks::stderr_sink_mt>(), pool,
      spdlog::async_overflow_policy::overrun_oldest);
  logger->set_level(spdlog::level::trace);  // Log() filters
  logger->flush_on(spdlog::level::trace);
  logger->set_pattern(format == LogFormat::kJson
                          ? R"({"ts":"%Y-%m-%dT%H:%M:%S.%eZ","level":"%l",%v})"
                          : "%Y-%m-%dT%H:%M:%S.%eZ %-7l %v",
                      spdlog::pattern_time_type::utc);
  instance = std::make_shared<const Logger>(Logger{format, std::move(pool), std::move(logger)});
  current_level = level;
}

void StopLog() {
  current_level = LogLevel::kOff;
  instance.store(nullptr);  // with its last user the pool writes what is queued and ends
}

void SetLogLevel(LogLevel level) {
  if (instance.load() != nullptr) current_level = level;
}

LogLevel GetLogLevel() { return current_level; }

void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  Log(level, message, absl::MakeConstSpan(fields.begin(), fields.size()));
}

void Log(LogLevel level, std::string_view message, absl::Span<const LogField> fields) {
  if (level < current_level.load(std::memory_order_relaxed) || level == LogLevel::kOff) return;
  const std::shared_ptr<const Logger> log = instance.load();
  if (log == nullptr) return;
  const std::string line = FormatLogLine(log->format, message, fields);
  log->logger->log(ToSpdlog(level), spdlog::string_view_t(line));
}

int64_t DroppedLogLines() {
  const std::shared_ptr<const Logger> log = instance.load();
  return log == nullptr ? 0 : static_cast<int64_t>(log->pool->overrun_counter());
}

std::string FormatLogLine(LogFormat format, std::string_view message,
                          absl::Span<const LogField> fields) {
  std::string line;
  if (format == LogFormat::kJson) {
    line.append("\"msg\":");
    AppendQuoted(message, &line);
    for (const LogField& field : fields) {
      line.push_back(',');
      AppendQuoted(field.key, &line);
      line.push_back(':');
      AppendValue(format, field, &line);
    }
    return line;
  }
  for (const char c : message) line.push_back(c >= 0x20 && c < 0x7f ? c : '?');
  for (const LogField& field : fields) {
    line.push_back(' ');
    line.append(field.key);
    line.push_back('=');
    AppendValue(format, field, &line);
  }
  return line;
}

}  // namespace attend
