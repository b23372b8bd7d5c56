// Command-line flags of one subcommand.
//
//   FlagSet flags("attend run", "Send one request.");
//   flags.Group("Connection");
//   flags.Add("addr", &addr, "HOST:PORT", "server address", "ATTEND_ADDR");
//   absl::Status status = flags.Parse(arguments);
//
// A flag's default is what its variable holds when it is added; a std::optional without a value has
// none. "--name value", "--name=value" and one dash instead of two are the same; a bool is
// "--name", "--no-name" or "--name=false". The environment variable, if it has one, comes before
// the default and after the command line. Variables must outlive the FlagSet.

#ifndef ATTEND_CLIENT_CLI_FLAGS_H_
#define ATTEND_CLIENT_CLI_FLAGS_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace attend::cli {

class FlagSet {
 public:
  FlagSet(std::string command, std::string summary)
      : command_(std::move(command)), summary_(std::move(summary)) {}

  // Flags added from here on are listed under `title`.
  void Group(std::string title) { group_ = std::move(title); }

  // `T`: bool, int, int64_t, uint64_t, double, std::string, std::chrono::nanoseconds ("1.5s",
  // "20ms", "3us"), std::vector<int64_t> and std::vector<std::string> ("1,2,3"), or std::optional
  // of one of these. `unit` is what the help shows for the value; it is empty for a bool.
  template <typename T>
  void Add(std::string name, T* variable, std::string unit, std::string help,
           std::string environment = "");

  // INVALID_ARGUMENT with one line for a flag that is unknown, malformed or without its value, and
  // for arguments that are no flags. Sets help_requested() for --help and stops there.
  absl::Status Parse(absl::Span<char* const> arguments);
  bool help_requested() const { return help_requested_; }

  // Whether the command line or the environment gave `name`.
  bool given(std::string_view name) const;

  // Name and present value of every flag; an empty value for one that has none.
  std::vector<std::pair<std::string, std::string>> Settings() const;

  std::string Help() const;

 private:
  struct Flag {
    std::string name;
    std::string unit;
    std::string help;
    std::string environment;
    std::string group;
    std::string default_text;
    bool is_bool = false;
    bool given = false;
    std::function<bool(std::string_view)> set;  // false: malformed
    std::function<std::string()> value;
  };

  Flag* Find(std::string_view name);
  absl::Status Set(Flag& flag, std::string_view value, std::string_view where);
  absl::Status ReadEnvironment();

  std::string command_;
  std::string summary_;
  std::string group_;
  std::vector<Flag> flags_;
  bool help_requested_ = false;
};

// Text to value and back; also used by tests. False when `text` is not wholly a value.
bool ParseValue(std::string_view text, bool* value);
bool ParseValue(std::string_view text, int* value);
bool ParseValue(std::string_view text, int64_t* value);
bool ParseValue(std::string_view text, uint64_t* value);
bool ParseValue(std::string_view text, double* value);
bool ParseValue(std::string_view text, std::string* value);
bool ParseValue(std::string_view text, std::chrono::nanoseconds* value);
bool ParseValue(std::string_view text, std::vector<int64_t>* value);
bool ParseValue(std::string_view text, std::vector<std::string>* value);
std::string FormatValue(bool value);
std::string FormatValue(int64_t value);
std::string FormatValue(uint64_t value);
std::string FormatValue(double value);
std::string FormatValue(const std::string& value);
std::string FormatValue(std::chrono::nanoseconds value);
std::string FormatValue(const std::vector<int64_t>& value);
std::string FormatValue(const std::vector<std::string>& value);
inline std::string FormatValue(int value) { return FormatValue(int64_t{value}); }

namespace internal {

template <typename T>
struct IsOptional : std::false_type {};
template <typename T>
struct IsOptional<std::optional<T>> : std::true_type {};

}  // namespace internal

template <typename T>
void FlagSet::Add(std::string name, T* variable, std::string unit, std::string help,
                  std::string environment) {
  Flag flag;
  flag.name = std::move(name);
  flag.unit = std::move(unit);
  flag.help = std::move(help);
  flag.environment = std::move(environment);
  flag.group = group_;
  flag.is_bool = std::is_same_v<T, bool>;
  if constexpr (internal::IsOptional<T>::value) {
    flag.value = [variable] { return variable->has_value() ? FormatValue(**variable) : ""; };
    flag.set = [variable](std::string_view text) {
      typename T::value_type value{};
      if (!ParseValue(text, &value)) return false;
      *variable = std::move(value);
      return true;
    };
  } else {
    flag.value = [variable] { return FormatValue(*variable); };
    flag.set = [variable](std::string_view text) {
      T value{};
      if (!ParseValue(text, &value)) return false;
      *variable = std::move(value);
      return true;
    };
  }
  flag.default_text = flag.value();
  flags_.push_back(std::move(flag));
}

}  // namespace attend::cli

#endif  // ATTEND_CLIENT_CLI_FLAGS_H_
