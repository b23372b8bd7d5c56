#include "server/ops/option_table.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace attend {
namespace {

absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }

struct Suffix {
  const char* name;
  int64_t factor;
};
constexpr Suffix kByteSuffixes[] = {
    {"GiB", int64_t{1} << 30}, {"MiB", int64_t{1} << 20}, {"KiB", int64_t{1} << 10}, {"B", 1}};
// "us" and "ms" before "s", which both end in.
constexpr Suffix kTimeSuffixes[] = {
    {"us", 1}, {"ms", 1000}, {"s", 1000000}, {"m", 60000000}, {"h", 3600000000}};

// "<number><suffix>" as an integer count of the smallest unit; a bare number counts `bare` of them.
std::optional<int64_t> ParseScaled(std::string_view text, absl::Span<const Suffix> suffixes,
                                   std::optional<int64_t> bare) {
  absl::string_view number = absl::StripAsciiWhitespace(ToAbsl(text));
  std::optional<int64_t> factor = bare;
  for (const Suffix& suffix : suffixes) {
    if (absl::ConsumeSuffix(&number, suffix.name)) {
      factor = suffix.factor;
      break;
    }
  }
  number = absl::StripAsciiWhitespace(number);
  double value;
  if (!factor || !absl::SimpleAtod(number, &value)) return std::nullopt;
  const double scaled = value * static_cast<double>(*factor);
  if (!(scaled >= 0) || scaled >= 9e18) return std::nullopt;
  int64_t exact;
  if (absl::SimpleAtoi(number, &exact)) return exact * *factor;
  return static_cast<int64_t>(std::llround(scaled));
}

std::string ScaledText(int64_t value, absl::Span<const Suffix> largest_first) {
  for (const Suffix& suffix : largest_first) {
    if (value != 0 && value % suffix.factor == 0) {
      return absl::StrCat(value / suffix.factor, suffix.name);
    }
  }
  return absl::StrCat(value);
}

absl::Status Bad(const std::string& what) { return absl::InvalidArgumentError(what); }

}  // namespace

std::optional<int64_t> ParseBytes(std::string_view text) {
  return ParseScaled(text, kByteSuffixes, 1);
}

std::optional<std::chrono::microseconds> ParseDuration(std::string_view text) {
  // A bare number has no unit to be guessed, but 0 needs none.
  const std::optional<int64_t> value =
      text == "0" ? std::optional<int64_t>(0) : ParseScaled(text, kTimeSuffixes, std::nullopt);
  if (!value) return std::nullopt;
  return std::chrono::microseconds(*value);
}

std::string BytesText(int64_t bytes) { return ScaledText(bytes, kByteSuffixes); }

std::string DurationText(std::chrono::microseconds duration) {
  constexpr Suffix kLargestFirst[] = {{"m", 60000000}, {"s", 1000000}, {"ms", 1000}, {"us", 1}};
  return ScaledText(duration.count(), kLargestFirst);
}

void OptionTable::AddRow(Row row) {
  row.default_text = row.get();
  rows_.push_back(std::move(row));
}

void OptionTable::Add(std::string name, std::string* target, std::string group, std::string help) {
  AddRow({std::move(name), "TEXT", std::move(group), std::move(help), "", false,
          [target](std::string_view text) {
            *target = std::string(text);
            return absl::OkStatus();
          },
          [target] { return *target; }});
}

void OptionTable::AddChoice(std::string name, std::string* target, const std::string& choices,
                            std::string group, std::string help) {
  AddRow({std::move(name), absl::StrReplaceAll(choices, {{", ", "|"}}), std::move(group),
          std::move(help), "", false,
          [target, choices](std::string_view text) {
            for (absl::string_view choice : absl::StrSplit(choices, ", ")) {
              if (choice == ToAbsl(text)) {
                *target = std::string(text);
                return absl::OkStatus();
              }
            }
            return Bad(absl::StrCat("is not one of ", choices));
          },
          [target] { return *target; }});
}

void OptionTable::Add(std::string name, bool* target, std::string group, std::string help) {
  AddRow({std::move(name), "true|false", std::move(group), std::move(help), "", true,
          [target](std::string_view text) {
            if (!absl::SimpleAtob(ToAbsl(text), target)) return Bad("is not true or false");
            return absl::OkStatus();
          },
          [target] { return std::string(*target ? "true" : "false"); }});
}

void OptionTable::Add(std::string name, int64_t* target, Unit unit, int64_t least, int64_t most,
                      std::string group, std::string help) {
  const auto text_of = [unit](int64_t value) {
    return unit == Unit::kBytes ? BytesText(value) : std::to_string(value);
  };
  AddRow({std::move(name), unit == Unit::kBytes ? "BYTES" : "NUMBER", std::move(group),
          std::move(help), "", false,
          [target, unit, least, most, text_of](std::string_view text) {
            std::optional<int64_t> value;
            if (unit == Unit::kBytes) {
              value = ParseBytes(text);
            } else if (int64_t number; absl::SimpleAtoi(ToAbsl(text), &number)) {
              value = number;
            }
            if (!value) {
              return Bad(unit == Unit::kBytes ? "is not a size such as 65536, 64KiB or 4GiB"
                                              : "is not a whole number");
            }
            if (*value < least || *value > most) {
              return Bad(absl::StrCat("is not in ", text_of(least), " to ", text_of(most)));
            }
            *target = *value;
            return absl::OkStatus();
          },
          [target, text_of] { return text_of(*target); }});
}

void OptionTable::Add(std::string name, int* target, int least, int most, std::string group,
                      std::string help) {
  AddRow({std::move(name), "NUMBER", std::move(group), std::move(help), "", false,
          [target, least, most](std::string_view text) {
            int value;
            if (!absl::SimpleAtoi(ToAbsl(text), &value)) return Bad("is not a whole number");
            if (value < least || value > most) {
              return Bad(absl::StrCat("is not in ", least, " to ", most));
            }
            *target = value;
            return absl::OkStatus();
          },
          [target] { return std::to_string(*target); }});
}

void OptionTable::Add(std::string name, double* target, double least, double most,
                      std::string group, std::string help) {
  AddRow({std::move(name), "NUMBER", std::move(group), std::move(help), "", false,
          [target, least, most](std::string_view text) {
            double value;
            if (!absl::SimpleAtod(ToAbsl(text), &value)) return Bad("is not a number");
            if (!(value >= least && value <= most)) {
              return Bad(absl::StrCat("is not in ", least, " to ", most));
            }
            *target = value;
            return absl::OkStatus();
          },
          [target] { return absl::StrCat(*target); }});
}

void OptionTable::Add(std::string name, std::chrono::microseconds* target, std::string group,
                      std::string help) {
  AddRow({std::move(name), "TIME", std::move(group), std::move(help), "", false,
          [target](std::string_view text) {
            const std::optional<std::chrono::microseconds> value = ParseDuration(text);
            if (!value) return Bad("is not a time such as 500us, 20ms, 5s or 10m");
            *target = *value;
            return absl::OkStatus();
          },
          [target] { return DurationText(*target); }});
}

void OptionTable::Add(std::string name, std::chrono::milliseconds* target, std::string group,
                      std::string help) {
  AddRow({std::move(name), "TIME", std::move(group), std::move(help), "", false,
          [target](std::string_view text) {
            const std::optional<std::chrono::microseconds> value = ParseDuration(text);
            if (!value) return Bad("is not a time such as 20ms, 5s or 10m");
            if (value->count() % 1000 != 0) return Bad("is finer than a millisecond");
            *target = std::chrono::duration_cast<std::chrono::milliseconds>(*value);
            return absl::OkStatus();
          },
          [target] { return DurationText(*target); }});
}

const OptionTable::Row* OptionTable::Find(std::string_view name) const {
  for (const Row& row : rows_) {
    if (row.name == name) return &row;
  }
  return nullptr;
}

absl::Status OptionTable::Set(std::string_view source, std::string_view name,
                              std::string_view value) {
  const Row* row = Find(name);
  if (row == nullptr) return Bad(absl::StrCat(ToAbsl(source), ": unknown option"));
  absl::Status status = row->set(value);
  if (status.ok()) return status;
  return Bad(absl::StrCat(ToAbsl(source), ": \"", ToAbsl(value), "\" ", status.message()));
}

absl::Status OptionTable::ReadFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) return Bad(absl::StrCat("--config-file: cannot read ", path));
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const absl::string_view text = absl::StripAsciiWhitespace(line);
    if (text.empty() || text[0] == '#') continue;
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(text, absl::MaxSplits('=', 1));
    const std::string source = absl::StrCat(path, " line ", number);
    if (!absl::StrContains(text, "=")) {
      return Bad(absl::StrCat(source, ": not of the form name = value"));
    }
    const std::string name(absl::StripAsciiWhitespace(parts.first));
    if (name == "config-file") return Bad(absl::StrCat(source, ": config files do not nest"));
    const std::string value(absl::StripAsciiWhitespace(parts.second));
    absl::Status status = Set(absl::StrCat(source, ": ", name), name, value);
    if (!status.ok()) return status;
  }
  if (file.bad()) return Bad(absl::StrCat("--config-file: cannot read ", path));
  return absl::OkStatus();
}

absl::Status OptionTable::Parse(absl::Span<const std::string> args, const GetEnv& get_env) {
  // First to its parts, so that a file named on the command line is read before the rest applies.
  std::vector<std::pair<std::string, std::string>> given;
  for (size_t i = 0; i < args.size(); ++i) {
    absl::string_view arg = args[i];
    if (!absl::ConsumePrefix(&arg, "--") || arg.empty()) {
      return Bad(absl::StrCat("unexpected argument \"", args[i], "\" (see --help)"));
    }
    const size_t equals = arg.find('=');
    std::string name(arg.substr(0, equals));
    const Row* row = Find(name);
    if (equals != absl::string_view::npos) {
      if (row == nullptr) return Bad(absl::StrCat("--", name, ": unknown option (see --help)"));
      given.emplace_back(name, std::string(arg.substr(equals + 1)));
    } else if (row != nullptr && row->is_bool) {
      given.emplace_back(name, "true");
    } else if (row != nullptr) {
      if (i + 1 == args.size()) return Bad(absl::StrCat("--", name, ": needs a value"));
      given.emplace_back(name, args[++i]);
    } else if (absl::StartsWith(name, "no-") && Find(name.substr(3)) != nullptr &&
               Find(name.substr(3))->is_bool) {
      given.emplace_back(name.substr(3), "false");
    } else {
      return Bad(absl::StrCat("--", name, ": unknown option (see --help)"));
    }
  }
  std::vector<std::pair<std::string, std::string>> environment;
  std::string file;
  for (const Row& row : rows_) {
    const std::string twin =
        absl::StrCat("ATTEND_", absl::AsciiStrToUpper(absl::StrReplaceAll(row.name, {{"-", "_"}})));
    const char* value = get_env(twin.c_str());
    if (value == nullptr) continue;
    environment.emplace_back(row.name, value);
    if (row.name == "config-file") file = value;
  }
  for (const auto& [name, value] : given) {
    if (name == "config-file") file = value;
  }
  if (!file.empty()) {
    if (absl::Status status = ReadFile(file); !status.ok()) return status;
  }
  for (const auto& [name, value] : environment) {
    const std::string source =
        absl::StrCat("ATTEND_", absl::AsciiStrToUpper(absl::StrReplaceAll(name, {{"-", "_"}})));
    if (absl::Status status = Set(source, name, value); !status.ok()) return status;
  }
  for (const auto& [name, value] : given) {
    if (absl::Status status = Set(absl::StrCat("--", name), name, value); !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

std::string OptionTable::Help() const {
  std::string out;
  std::string group;
  for (const Row& row : rows_) {
    if (row.group != group) {
      group = row.group;
      absl::StrAppend(&out, "\n", group, ":\n");
    }
    absl::StrAppend(
        &out, "  --", row.name, "=", row.kind, "\n      ", row.help,
        row.default_text.empty() ? " (none)" : absl::StrCat(" (", row.default_text, ")"), "\n");
  }
  return out;
}

std::vector<std::pair<std::string, std::string>> OptionTable::Values() const {
  std::vector<std::pair<std::string, std::string>> values;
  for (const Row& row : rows_) values.emplace_back(row.name, row.get());
  return values;
}

}  // namespace attend
