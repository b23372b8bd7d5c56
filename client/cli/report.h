// What a benchmark prints.

#ifndef ATTEND_CLIENT_CLI_REPORT_H_
#define ATTEND_CLIENT_CLI_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "attend/server_info.h"
#include "cli/load.h"

namespace attend::cli {

struct CheckSummary {
  int64_t answers = 0;
  int64_t rows = 0;  // rows of a head
  int64_t wrong = 0;
  double worst = 0;  // largest error as a share of what is allowed
  std::string first_wrong;
};

struct Report {
  uint64_t seed = 0;
  std::string address;
  std::optional<client::ServerInfo> server;
  std::vector<std::pair<std::string, std::string>> settings;  // name and value of flags
  LoadResult load;
  CheckSummary check;
  std::vector<std::string> failures;  // why the exit code is not 0
};

std::string ReportText(const Report& report);
// One object; durations in seconds, sizes in bytes. Fields are only ever added.
std::string ReportJson(const Report& report);

// One line a request; the first names the columns.
absl::Status WriteTrace(const std::string& path, const std::vector<TraceRow>& rows);

}  // namespace attend::cli

#endif  // ATTEND_CLIENT_CLI_REPORT_H_
