#include "cli/flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace attend::cli {
namespace {

using std::chrono::nanoseconds;
using ::testing::HasSubstr;

struct Flags {
  bool on = false;
  int count = 3;
  double share = 0.5;
  std::string name = "x";
  nanoseconds time = std::chrono::milliseconds(250);
  std::vector<int64_t> list;
  std::optional<int64_t> maybe;

  FlagSet set{"attend test", "A test."};

  Flags() {
    set.Group("All");
    set.Add("on", &on, "", "a switch");
    set.Add("count", &count, "N", "how many", "ATTEND_TEST_COUNT");
    set.Add("share", &share, "SHARE", "of what");
    set.Add("name", &name, "TEXT", "of whom");
    set.Add("time", &time, "TIME", "how long");
    set.Add("list", &list, "N,N", "several");
    set.Add("maybe", &maybe, "N", "or not");
  }

  absl::Status Parse(std::vector<const char*> arguments) {
    std::vector<char*> pointers;
    for (const char* argument : arguments) pointers.push_back(const_cast<char*>(argument));
    return set.Parse(pointers);
  }
};

TEST(FlagsTest, ParsesEverySpelling) {
  Flags flags;
  ASSERT_TRUE(flags
                  .Parse({"--on", "--count", "7", "-share=0.25", "--name=a=b", "-time", "1.5s",
                          "--list=1,-2,3", "--maybe=0"})
                  .ok());
  EXPECT_TRUE(flags.on);
  EXPECT_EQ(flags.count, 7);
  EXPECT_EQ(flags.share, 0.25);
  EXPECT_EQ(flags.name, "a=b");
  EXPECT_EQ(flags.time, std::chrono::milliseconds(1500));
  EXPECT_EQ(flags.list, (std::vector<int64_t>{1, -2, 3}));
  EXPECT_EQ(flags.maybe, 0);
  EXPECT_TRUE(flags.set.given("maybe"));
  EXPECT_FALSE(Flags().set.given("maybe"));
}

TEST(FlagsTest, BoolsCanBeTurnedOff) {
  for (const char* argument : {"--no-on", "--on=false"}) {
    Flags flags;
    flags.on = true;
    ASSERT_TRUE(flags.Parse({argument}).ok());
    EXPECT_FALSE(flags.on);
  }
  Flags flags;
  EXPECT_FALSE(flags.Parse({"--no-count"}).ok());
}

TEST(FlagsTest, RefusesWhatItDoesNotKnow) {
  const struct {
    std::vector<const char*> arguments;
    const char* what;
  } rows[] = {
      {{"--nosuch"}, "--nosuch"},
      {{"--nosuch=1"}, "--nosuch"},
      {{"word"}, "word"},
      {{"--count"}, "needs a value"},
      {{"--count=x"}, "\"x\""},
      {{"--count=1.5"}, "1.5"},
      {{"--count=9999999999"}, "N"},
      {{"--share=nan"}, "nan"},
      {{"--time=5"}, "TIME"},
      {{"--time=-1s"}, "TIME"},
      {{"--time=s"}, "TIME"},
      {{"--list=1,,2"}, "N,N"},
      {{"--on=maybe"}, "true or false"},
      {{"-"}, "-"},
      {{"--"}, "--"},
  };
  for (const auto& row : rows) {
    Flags flags;
    const absl::Status status = flags.Parse(row.arguments);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << row.arguments[0];
    EXPECT_THAT(std::string(status.message()), HasSubstr(row.what));
  }
}

TEST(FlagsTest, EnvironmentStandsBetweenDefaultAndCommandLine) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): one thread
  setenv("ATTEND_TEST_COUNT", "11", 1);
  Flags from_environment;
  ASSERT_TRUE(from_environment.Parse({}).ok());
  EXPECT_EQ(from_environment.count, 11);
  Flags from_line;
  ASSERT_TRUE(from_line.Parse({"--count=12"}).ok());
  EXPECT_EQ(from_line.count, 12);
  // NOLINTNEXTLINE(concurrency-mt-unsafe): one thread
  setenv("ATTEND_TEST_COUNT", "eleven", 1);
  Flags broken;
  EXPECT_THAT(std::string(broken.Parse({}).message()), HasSubstr("ATTEND_TEST_COUNT"));
  // NOLINTNEXTLINE(concurrency-mt-unsafe): one thread
  unsetenv("ATTEND_TEST_COUNT");
}

TEST(FlagsTest, HelpShowsUnitsDefaultsAndEnvironment) {
  Flags flags;
  ASSERT_TRUE(flags.Parse({"--nosuch", "--help"}).ok()) << "help comes before everything";
  EXPECT_TRUE(flags.set.help_requested());
  const std::string help = flags.set.Help();
  for (const char* text : {"A test.", "--count N", "(default: 3)", "[$ATTEND_TEST_COUNT]",
                           "(default: 250ms)", "All:", "--maybe N"}) {
    EXPECT_THAT(help, HasSubstr(text));
  }
}

TEST(FlagsTest, Durations) {
  const struct {
    const char* text;
    int64_t nanoseconds;
  } rows[] = {{"0s", 0},
              {"3ns", 3},
              {"2us", 2'000},
              {"1ms", 1'000'000},
              {"0.5ms", 500'000},
              {"2m", 120'000'000'000},
              {"1h", 3'600'000'000'000}};
  for (const auto& row : rows) {
    nanoseconds value{-1};
    EXPECT_TRUE(ParseValue(row.text, &value)) << row.text;
    EXPECT_EQ(value.count(), row.nanoseconds) << row.text;
  }
  nanoseconds value{};
  EXPECT_FALSE(ParseValue("1e30h", &value));
  EXPECT_FALSE(ParseValue("", &value));
}

}  // namespace
}  // namespace attend::cli
