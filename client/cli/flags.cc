#include "cli/flags.h"

#include <cmath>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace attend::cli {
namespace {

absl::string_view Absl(std::string_view text) { return {text.data(), text.size()}; }

struct TimeUnit {
  const char* suffix;
  double nanoseconds;
};
// Longest suffix first where one ends in another.
constexpr TimeUnit kTimeUnits[] = {{"ns", 1},  {"us", 1e3}, {"ms", 1e6},
                                   {"s", 1e9}, {"m", 60e9}, {"h", 3600e9}};

}  // namespace

bool ParseValue(std::string_view text, bool* value) { return absl::SimpleAtob(Absl(text), value); }

bool ParseValue(std::string_view text, int* value) { return absl::SimpleAtoi(Absl(text), value); }

bool ParseValue(std::string_view text, int64_t* value) {
  return absl::SimpleAtoi(Absl(text), value);
}

bool ParseValue(std::string_view text, uint64_t* value) {
  return absl::SimpleAtoi(Absl(text), value);
}

bool ParseValue(std::string_view text, double* value) {
  return absl::SimpleAtod(Absl(text), value) && std::isfinite(*value);
}

bool ParseValue(std::string_view text, std::string* value) {
  *value = text;
  return true;
}

bool ParseValue(std::string_view text, std::chrono::nanoseconds* value) {
  for (const TimeUnit& unit : kTimeUnits) {
    if (!text.ends_with(unit.suffix)) continue;
    double number = 0;
    if (!ParseValue(text.substr(0, text.size() - std::string_view(unit.suffix).size()), &number)) {
      continue;
    }
    const double nanoseconds = number * unit.nanoseconds;
    if (number < 0 || nanoseconds > 9e18) return false;
    *value = std::chrono::nanoseconds(std::llround(nanoseconds));
    return true;
  }
  return false;
}

bool ParseValue(std::string_view text, std::vector<int64_t>* value) {
  value->clear();
  for (const absl::string_view part : absl::StrSplit(Absl(text), ',')) {
    int64_t number = 0;
    if (!absl::SimpleAtoi(part, &number)) return false;
    value->push_back(number);
  }
  return true;
}

bool ParseValue(std::string_view text, std::vector<std::string>* value) {
  *value = absl::StrSplit(Absl(text), ',');
  return true;
}

std::string FormatValue(bool value) { return value ? "true" : "false"; }
std::string FormatValue(int64_t value) { return absl::StrCat(value); }
std::string FormatValue(uint64_t value) { return absl::StrCat(value); }
std::string FormatValue(double value) { return absl::StrCat(value); }
std::string FormatValue(const std::string& value) { return value; }

std::string FormatValue(std::chrono::nanoseconds value) {
  const double nanoseconds = static_cast<double>(value.count());
  if (nanoseconds >= 1e9 || nanoseconds == 0) return absl::StrCat(nanoseconds / 1e9, "s");
  if (nanoseconds >= 1e6) return absl::StrCat(nanoseconds / 1e6, "ms");
  if (nanoseconds >= 1e3) return absl::StrCat(nanoseconds / 1e3, "us");
  return absl::StrCat(nanoseconds, "ns");
}

std::string FormatValue(const std::vector<int64_t>& value) { return absl::StrJoin(value, ","); }
std::string FormatValue(const std::vector<std::string>& value) { return absl::StrJoin(value, ","); }

FlagSet::Flag* FlagSet::Find(std::string_view name) {
  for (Flag& flag : flags_) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

absl::Status FlagSet::Set(Flag& flag, std::string_view value, std::string_view where) {
  if (!flag.set(value)) {
    return absl::InvalidArgumentError(absl::StrCat(Absl(where), ": \"", Absl(value), "\" is not ",
                                                   flag.is_bool ? "true or false" : flag.unit));
  }
  flag.given = true;
  return absl::OkStatus();
}

absl::Status FlagSet::ReadEnvironment() {
  for (Flag& flag : flags_) {
    if (flag.environment.empty()) continue;
    // NOLINTNEXTLINE(concurrency-mt-unsafe): no thread has been started yet
    const char* value = std::getenv(flag.environment.c_str());
    if (value == nullptr || *value == '\0') continue;
    if (absl::Status status = Set(flag, value, flag.environment); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status FlagSet::Parse(absl::Span<char* const> arguments) {
  for (const char* argument : arguments) {
    const std::string_view text = argument;
    if (text == "--help" || text == "-help" || text == "-h") {
      help_requested_ = true;
      return absl::OkStatus();
    }
  }
  if (absl::Status status = ReadEnvironment(); !status.ok()) return status;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (argument.size() < 2 || argument[0] != '-') {
      return absl::InvalidArgumentError(
          absl::StrCat("unexpected argument \"", Absl(argument), "\""));
    }
    const std::string_view body = argument.substr(argument[1] == '-' ? 2 : 1);
    const size_t equals = body.find('=');
    const std::string_view name = body.substr(0, equals);
    const std::string shown = absl::StrCat("--", Absl(name));
    Flag* flag = Find(name);
    std::string_view value;
    if (flag == nullptr && name.starts_with("no-") && equals == std::string_view::npos) {
      flag = Find(name.substr(3));
      if (flag != nullptr && !flag->is_bool) flag = nullptr;
      value = "false";
    } else if (flag == nullptr) {
    } else if (equals != std::string_view::npos) {
      value = body.substr(equals + 1);
    } else if (flag->is_bool) {
      value = "true";
    } else if (i + 1 < arguments.size()) {
      value = arguments[++i];
    } else {
      return absl::InvalidArgumentError(absl::StrCat(shown, ": needs a value"));
    }
    if (flag == nullptr) return absl::InvalidArgumentError(absl::StrCat("unknown flag ", shown));
    if (absl::Status status = Set(*flag, value, shown); !status.ok()) return status;
  }
  return absl::OkStatus();
}

bool FlagSet::given(std::string_view name) const {
  for (const Flag& flag : flags_) {
    if (flag.name == name) return flag.given;
  }
  return false;
}

std::vector<std::pair<std::string, std::string>> FlagSet::Settings() const {
  std::vector<std::pair<std::string, std::string>> settings;
  for (const Flag& flag : flags_) settings.emplace_back(flag.name, flag.value());
  return settings;
}

std::string FlagSet::Help() const {
  std::string help = absl::StrCat(summary_, "\n\nUsage: ", command_, " [flags]\n");
  const std::string* group = nullptr;
  for (const Flag& flag : flags_) {
    if (group == nullptr || *group != flag.group) {
      absl::StrAppend(&help, "\n", flag.group, ":\n");
      group = &flag.group;
    }
    absl::StrAppend(&help, "  --", flag.name, flag.unit.empty() ? "" : " ", flag.unit, "\n      ",
                    flag.help);
    if (!flag.default_text.empty()) absl::StrAppend(&help, " (default: ", flag.default_text, ")");
    if (!flag.environment.empty()) absl::StrAppend(&help, " [$", flag.environment, "]");
    absl::StrAppend(&help, "\n");
  }
  return help;
}

}  // namespace attend::cli
