#include "server/ops/log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "server/ops/log_sampler.h"

namespace attend {
namespace {

using ::testing::HasSubstr;
using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

TEST(LogTest, TextQuotesWhatNeedsIt) {
  EXPECT_EQ(FormatLogLine(LogFormat::kText, "hello",
                          std::vector<LogField>{{"plain", "word"},
                                                {"spaced", "two words"},
                                                {"empty", ""},
                                                {"evil", "a\nb\"c\\"},
                                                {"count", int64_t{-3}},
                                                {"share", 0.25}}),
            R"(hello plain=word spaced="two words" empty="" evil="a\nb\"c\\" count=-3 share=0.25)");
}

TEST(LogTest, JsonEscapes) {
  EXPECT_EQ(FormatLogLine(LogFormat::kJson, "say \"hi\"",
                          std::vector<LogField>{{"id", "x\ty\x7f\xff"},
                                                {"n", int64_t{7}},
                                                {"bad", std::numeric_limits<double>::infinity()}}),
            R"("msg":"say \"hi\"","id":"x\u0009y\u007f\u00ff","n":7,"bad":null)");
}

TEST(LogTest, OneLineHoweverItIsCalled) {
  EXPECT_EQ(FormatLogLine(LogFormat::kText, "two\nlines", {}), "two?lines");
}

TEST(LogTest, LevelsChangeAtRunTime) {
  CaptureStderr();
  StartLog(LogFormat::kJson, LogLevel::kWarn);
  Log(LogLevel::kInfo, "hidden one");
  Log(LogLevel::kError, "shown one", {{"k", "v"}});
  SetLogLevel(LogLevel::kDebug);
  Log(LogLevel::kDebug, "shown two");
  SetLogLevel(LogLevel::kOff);
  Log(LogLevel::kError, "hidden two");
  StopLog();
  Log(LogLevel::kError, "hidden three");
  const std::string lines = GetCapturedStderr();
  EXPECT_THAT(lines, HasSubstr(R"("level":"error","msg":"shown one","k":"v"})"));
  EXPECT_THAT(lines, HasSubstr("shown two"));
  EXPECT_THAT(lines, ::testing::Not(HasSubstr("hidden")));
}

TEST(LogTest, ManyThreads) {
  CaptureStderr();
  StartLog(LogFormat::kText, LogLevel::kInfo);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 500; ++i) Log(LogLevel::kInfo, "line", {{"i", int64_t{i}}});
    });
  }
  for (std::thread& thread : threads) thread.join();
  const int64_t dropped = DroppedLogLines();
  StopLog();
  const std::string lines = GetCapturedStderr();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n') + dropped, 2000);
}

TEST(LogTest, LevelNames) {
  for (LogLevel level :
       {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarn, LogLevel::kError, LogLevel::kOff}) {
    LogLevel parsed = LogLevel::kOff;
    EXPECT_TRUE(ParseLogLevel(Name(level), &parsed));
    EXPECT_EQ(parsed, level);
  }
  LogLevel untouched = LogLevel::kWarn;
  EXPECT_FALSE(ParseLogLevel("loud", &untouched));
  EXPECT_EQ(untouched, LogLevel::kWarn);
}

TEST(LogSamplerTest, CountsWhatItLeavesOut) {
  LogSampler sampler(2);
  const Clock::time_point start = Clock::now();
  EXPECT_EQ(sampler.Admit(start), 0);
  EXPECT_EQ(sampler.Admit(start), 0);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(sampler.Admit(start), std::nullopt);
  EXPECT_EQ(sampler.Admit(start + std::chrono::milliseconds(999)), std::nullopt);
  EXPECT_EQ(sampler.Admit(start + std::chrono::seconds(1)), 6);
  EXPECT_EQ(sampler.Admit(start + std::chrono::seconds(1)), 0);
}

TEST(LogSamplerTest, NoLimit) {
  LogSampler sampler(0);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(sampler.Admit(Clock::time_point()), 0);
}

}  // namespace
}  // namespace attend
