// Command-line options as a table: each row is a flag, its ATTEND_* environment twin, its unit, its
// default and its help.
//
//   OptionTable table;
//   table.Add("max-batch-bytes", &options.max_batch_bytes, Unit::kBytes, "Limits", "...");
//   absl::Status status = table.Parse(args, getenv);
//
// Sources, strongest first: command line, environment, file given with --config-file, default.
// Own code rather than absl's flags: those print their own help, end the process themselves and are
// global to it.

#ifndef ATTEND_SERVER_OPS_OPTION_TABLE_H_
#define ATTEND_SERVER_OPS_OPTION_TABLE_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace attend {

// How a number is written. Bytes take the suffixes KiB, MiB, GiB; times us, ms, s, m, h.
enum class Unit : uint8_t { kCount, kBytes };

class OptionTable {
 public:
  using GetEnv = std::function<const char*(const char*)>;

  // Rows. Values that stand in the targets are the defaults; targets outlive the table. Numbers
  // outside [least, most] are refused.
  void Add(std::string name, std::string* target, std::string group, std::string help);
  void Add(std::string name, bool* target, std::string group, std::string help);
  void Add(std::string name, int64_t* target, Unit unit, int64_t least, int64_t most,
           std::string group, std::string help);
  void Add(std::string name, int* target, int least, int most, std::string group, std::string help);
  void Add(std::string name, double* target, double least, double most, std::string group,
           std::string help);
  void Add(std::string name, std::chrono::microseconds* target, std::string group,
           std::string help);
  void Add(std::string name, std::chrono::milliseconds* target, std::string group,
           std::string help);
  // One of `choices`, comma-separated.
  void AddChoice(std::string name, std::string* target, const std::string& choices,
                 std::string group, std::string help);

  // INVALID_ARGUMENT, in one line naming the option and its source. `args` without the program's
  // name; --name=value, --name value, and --name or --no-name for booleans. A file that cannot be
  // read or has a line that is no `name = value` is refused.
  absl::Status Parse(absl::Span<const std::string> args, const GetEnv& get_env);

  // All rows by group, with defaults and environment names.
  std::string Help() const;
  // "name=value" of every row, for tests and the start-up log; values of Secret rows are left out.
  std::vector<std::pair<std::string, std::string>> Values() const;

 private:
  struct Row {
    std::string name, kind, group, help, default_text;
    bool is_bool = false;
    std::function<absl::Status(std::string_view)> set;
    std::function<std::string()> get;
  };

  void AddRow(Row row);
  const Row* Find(std::string_view name) const;
  absl::Status Set(std::string_view source, std::string_view name, std::string_view value);
  absl::Status ReadFile(const std::string& path);

  std::vector<Row> rows_;
};

// Text of a number of bytes or a duration in its largest exact unit: "64 MiB", "1500ms".
std::string BytesText(int64_t bytes);
std::string DurationText(std::chrono::microseconds duration);
std::optional<int64_t> ParseBytes(std::string_view text);
std::optional<std::chrono::microseconds> ParseDuration(std::string_view text);

}  // namespace attend

#endif  // ATTEND_SERVER_OPS_OPTION_TABLE_H_
