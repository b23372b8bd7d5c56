#include "server/ops/option_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <map>

#include "server/ops/options.h"

namespace attend {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

struct Values {
  std::string text = "none";
  bool flag = false;
  int64_t bytes = int64_t{64} << 20;
  int number = 3;
  double share = 0.5;
  std::chrono::milliseconds time{1500};
  std::string choice = "one";
};

class OptionTableTest : public ::testing::Test {
 protected:
  OptionTableTest() {
    table_.Add("text", &values_.text, "Group", "some text");
    table_.Add("flag", &values_.flag, "Group", "a switch");
    table_.Add("some-bytes", &values_.bytes, Unit::kBytes, 1, int64_t{1} << 40, "Group", "bytes");
    table_.Add("number", &values_.number, 1, 10, "Other", "a number");
    table_.Add("share", &values_.share, 0, 1, "Other", "a share");
    table_.Add("time", &values_.time, "Other", "a time");
    table_.AddChoice("choice", &values_.choice, "one, two", "Other", "a choice");
    table_.Add("config-file", &file_, "Other", "a file");
  }
  absl::Status Parse(std::vector<std::string> args) {
    return table_.Parse(args, [this](const char* name) {
      const auto found = environment_.find(name);
      return found == environment_.end() ? nullptr : found->second.c_str();
    });
  }
  std::string WriteFile(const std::string& content) {
    const std::string path = ::testing::TempDir() + "/option_table_test.conf";
    std::ofstream(path) << content;
    return path;
  }

  Values values_;
  std::string file_;
  std::map<std::string, std::string> environment_;
  OptionTable table_;
};

TEST_F(OptionTableTest, BothSpellingsAndUnits) {
  ASSERT_TRUE(Parse({"--text=a=b", "--flag", "--some-bytes", "2GiB", "--number=7", "--share=0.25",
                     "--time=2.5s", "--choice=two"})
                  .ok());
  EXPECT_EQ(values_.text, "a=b");
  EXPECT_TRUE(values_.flag);
  EXPECT_EQ(values_.bytes, int64_t{2} << 30);
  EXPECT_EQ(values_.number, 7);
  EXPECT_EQ(values_.share, 0.25);
  EXPECT_EQ(values_.time, std::chrono::milliseconds(2500));
  EXPECT_EQ(values_.choice, "two");
  ASSERT_TRUE(Parse({"--no-flag", "--some-bytes=77", "--time=0"}).ok());
  EXPECT_FALSE(values_.flag);
  EXPECT_EQ(values_.bytes, 77);
  EXPECT_EQ(values_.time.count(), 0);
}

TEST_F(OptionTableTest, CommandLineThenEnvironmentThenFile) {
  environment_ = {{"ATTEND_NUMBER", "5"}, {"ATTEND_SOME_BYTES", "1KiB"}};
  const std::string path = WriteFile("# comment\n\nnumber = 4\n text = from file \nshare=1\n");
  ASSERT_TRUE(Parse({"--some-bytes=1MiB", "--config-file", path}).ok());
  EXPECT_EQ(values_.bytes, 1 << 20);
  EXPECT_EQ(values_.number, 5);
  EXPECT_EQ(values_.text, "from file");
  EXPECT_EQ(values_.share, 1);
}

TEST_F(OptionTableTest, EachMistakeIsOneLineThatNamesIt) {
  const struct {
    std::vector<std::string> args;
    const char* text;
  } rows[] = {
      {{"--nothing=1"}, "--nothing"},
      {{"--nothing"}, "--nothing"},
      {{"word"}, "word"},
      {{"-n"}, "-n"},
      {{"--"}, "--"},
      {{"--text"}, "--text: needs a value"},
      {{"--flag=maybe"}, "--flag"},
      {{"--no-number"}, "--no-number"},
      {{"--some-bytes=12parsecs"}, "--some-bytes"},
      {{"--some-bytes=-1"}, "--some-bytes"},
      {{"--some-bytes="}, "--some-bytes"},
      {{"--some-bytes=0"}, "is not in 1B to 1024GiB"},
      {{"--some-bytes=99999999999GiB"}, "--some-bytes"},
      {{"--number=11"}, "is not in 1 to 10"},
      {{"--number=7.5"}, "--number"},
      {{"--share=nan"}, "--share"},
      {{"--share=2"}, "is not in 0 to 1"},
      {{"--time=5"}, "--time"},  // 5 of what?
      {{"--time=10us"}, "finer"},
      {{"--time=-5s"}, "--time"},
      {{"--choice=three"}, "one, two"},
      {{"--config-file=/nowhere/at/all"}, "/nowhere/at/all"},
  };
  for (const auto& row : rows) {
    const absl::Status status = Parse(row.args);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << row.args[0];
    EXPECT_THAT(std::string(status.message()), HasSubstr(row.text));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
  }
}

TEST_F(OptionTableTest, BadFilesAndEnvironmentsNameTheirPlace) {
  EXPECT_THAT(std::string(Parse({"--config-file=" + WriteFile("number = 4\nnumber\n")}).message()),
              HasSubstr("line 2"));
  EXPECT_THAT(std::string(Parse({"--config-file=" + WriteFile("color = red\n")}).message()),
              HasSubstr("line 1: color: unknown"));
  EXPECT_THAT(std::string(Parse({"--config-file=" + WriteFile("config-file = x\n")}).message()),
              HasSubstr("nest"));
  environment_ = {{"ATTEND_NUMBER", "many"}};
  EXPECT_THAT(std::string(Parse({}).message()), HasSubstr("ATTEND_NUMBER: \"many\""));
}

TEST_F(OptionTableTest, HelpShowsDefaultsAndUnits) {
  const std::string help = table_.Help();
  EXPECT_THAT(help, HasSubstr("--some-bytes=BYTES\n      bytes (64MiB)"));
  EXPECT_THAT(help, HasSubstr("--time=TIME\n      a time (1500ms)"));
  EXPECT_THAT(help, HasSubstr("--choice=one|two"));
}

TEST(ServerOptionsTest, DefaultsAreValidAndRoundTrip) {
  ServerOptions options;
  OptionTable table = MakeOptionTable(&options);
  EXPECT_TRUE(Validate(options.engine).ok());
  EXPECT_TRUE(Validate(options.grpc).ok());
  // What --help shows can be given back.
  std::vector<std::string> args;
  for (const auto& [name, value] : table.Values()) {
    if (name != "config-file") args.push_back("--" + name + "=" + value);
  }
  const absl::Status status = table.Parse(args, [](const char*) { return nullptr; });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(options.engine.max_in_flight_bytes, EngineOptions().max_in_flight_bytes);
}

TEST(ServerOptionsTest, EveryOptionReachesItsPlace) {
  const auto parse = [](std::vector<std::string> args) {
    return ParseCommandLine(args, [](const char*) { return nullptr; });
  };
  const absl::StatusOr<CommandLine> line =
      parse({"--listen=0.0.0.0:1", "--workers=2", "--max-batch-tasks=9", "--batch-delay=50us",
             "--max-batch-flops=1e9", "--ageing=1s", "--max-sequences=5", "--drain-timeout=1m",
             "--completion-threads=4", "--max-in-flight-bytes=1GiB", "--client-share=1"});
  ASSERT_TRUE(line.ok()) << line.status();
  EXPECT_EQ(line->options.grpc.listen, "0.0.0.0:1");
  EXPECT_EQ(line->options.engine.workers, 2);
  EXPECT_EQ(line->options.engine.max_batch_tasks, 9);
  EXPECT_EQ(line->options.engine.batch_delay, std::chrono::microseconds(50));
  EXPECT_EQ(line->options.engine.max_batch_flops, 1e9);
  EXPECT_EQ(line->options.engine.ageing, std::chrono::seconds(1));
  EXPECT_EQ(line->options.codec.max_sequences, 5);
  EXPECT_EQ(line->options.drain_timeout, std::chrono::minutes(1));
  EXPECT_EQ(line->options.engine.completion_threads, 4);
  EXPECT_EQ(line->options.engine.max_in_flight_bytes, int64_t{1} << 30);
  EXPECT_EQ(line->options.engine.client_share, 1);
  EXPECT_FALSE(parse({"--backend=abacus"}).ok());
  EXPECT_FALSE(parse({"--devices=0,0"}).ok());
  EXPECT_FALSE(parse({"--devices=one"}).ok());
  EXPECT_FALSE(parse({"--ageing=0"}).ok());  // out of the engine's range
  // Two messages of 256 MiB would not fit.
  EXPECT_FALSE(parse({"--max-receive-buffer-bytes=511MiB"}).ok());
  EXPECT_EQ(parse({"--help"})->action, Action::kHelp);
  EXPECT_EQ(parse({"--version", "--nonsense"})->action, Action::kVersion);
}

}  // namespace
}  // namespace attend
