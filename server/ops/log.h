// Structured log lines on stderr: text for people, JSON for machines.
//
//   Log(LogLevel::kWarn, "request refused", {{"request_id", id}, {"code", "INVALID_ARGUMENT"}});
//
// Lines are handed to one writer thread through a bounded queue: a slow reader of stderr costs
// lines (counted), never time. All functions are thread-safe. Never pass a secret.

#ifndef ATTEND_SERVER_OPS_LOG_H_
#define ATTEND_SERVER_OPS_LOG_H_

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>

#include "absl/types/span.h"

namespace attend {

enum class LogLevel : uint8_t { kDebug, kInfo, kWarn, kError, kOff };
inline constexpr std::string_view kLogLevelNames = "debug, info, warn, error, off";
std::string_view Name(LogLevel level);
bool ParseLogLevel(std::string_view name, LogLevel* level);

enum class LogFormat : uint8_t { kText, kJson };

struct LogField {
  std::string_view key;  // [a-z_]+
  std::variant<std::string_view, int64_t, double> value;
};

// Starts logging; until then, and after StopLog, lines go nowhere. Not thread-safe.
void StartLog(LogFormat format, LogLevel level);
// Writes what is queued and stops. Not thread-safe.
void StopLog();

void SetLogLevel(LogLevel level);
LogLevel GetLogLevel();

void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {});
void Log(LogLevel level, std::string_view message, absl::Span<const LogField> fields);

// Lines lost since the start because the queue was full.
int64_t DroppedLogLines();

// The line without time and level, as Log writes it; for tests.
std::string FormatLogLine(LogFormat format, std::string_view message,
                          absl::Span<const LogField> fields);

}  // namespace attend

#endif  // ATTEND_SERVER_OPS_LOG_H_
