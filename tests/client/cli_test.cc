// The command line as its users meet it: exit codes, what goes to which stream, against a scripted
// server in this process.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "cli/npy.h"
#include "tests/client/fake_service.h"

namespace attend::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

struct Ended {
  int code = -1;
  std::string out;
  std::string err;
};

class CliTest : public ::testing::Test {
 protected:
  CliTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "attend_cli_XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
  }
  ~CliTest() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const { return (directory_ / name).string(); }

  std::string Read(const std::string& name) const {
    std::ostringstream content;
    content << std::ifstream(Path(name)).rdbuf();
    return content.str();
  }

  Ended Attend(const std::string& arguments) const {
    const std::string command = std::string(ATTEND_CLI) + " " + arguments + " >" + Path("out") +
                                " 2>" + Path("err") + " </dev/null";
    // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing here minds
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, Read("out"), Read("err")};
  }

  // q.npy, k.npy, v.npy of [3, 2, 4] and, for the echoing server, what it answers.
  std::string Inputs(NpyType type) const {
    const std::vector<int64_t> shape = {3, 2, 4};
    std::vector<std::byte> data(static_cast<size_t>(24 * ElementBytes(type)));
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 37 % 64);
    for (const char* name : {"q.npy", "k.npy", "v.npy"}) {
      EXPECT_TRUE(WriteNpy(Path(name), type, shape, data).ok());
    }
    for (std::byte& byte : data) byte = ~byte;
    EXPECT_TRUE(WriteNpy(Path("echo.npy"), type, shape, data).ok());
    return " --q=" + Path("q.npy") + " --k=" + Path("k.npy") + " --v=" + Path("v.npy");
  }

  std::filesystem::path directory_;
};

TEST_F(CliTest, HelpAndVersionGoToStandardOutput) {
  for (const char* arguments :
       {"--help", "-h", "help", "run --help", "bench --help", "health --help", "info --help"}) {
    const Ended ended = Attend(arguments);
    EXPECT_EQ(ended.code, 0) << arguments;
    EXPECT_THAT(ended.out, HasSubstr("Usage: attend"));
    EXPECT_THAT(ended.err, IsEmpty());
  }
  EXPECT_THAT(Attend("--version").out, HasSubstr(ATTEND_TEST_VERSION));
  EXPECT_EQ(Attend("--version").code, 0);
}

TEST_F(CliTest, UsageErrorsAreOneLineAndCodeTwo) {
  for (const char* arguments :
       {"nosuch", "--nosuch", "run --nosuch", "bench --nosuch", "info --nosuch", "run",
        "bench --requests=0", "bench --rate=-1", "bench --rows=0", "bench --dtypes=fp8",
        "bench --causal=2", "bench --output=xml", "run --q=a --k=b --v=c --priority=urgent",
        "run --q=a --k=b --v=c --dtype=int8", "run extra", "info --channels=2",
        "bench --channels=0", "bench --max-attempts=0", "bench --token-file=/dev/null"}) {
    const Ended ended = Attend(arguments);
    EXPECT_EQ(ended.code, 2) << arguments;
    EXPECT_THAT(ended.out, IsEmpty()) << arguments;
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  }
  EXPECT_EQ(Attend("").code, 2);
}

TEST_F(CliTest, HealthHasTheCodesOfTheProbe) {
  EXPECT_EQ(Attend("health --nosuch").code, 1);
  EXPECT_EQ(Attend("health -connect-timeout=soon").code, 1);
  std::string gone;
  {
    client::FakeServer server(client::EchoHandler);
    const std::string address = "health -addr=" + server.target();
    const Ended serving = Attend(address);
    EXPECT_EQ(serving.code, 0) << serving.err;
    EXPECT_THAT(serving.out, HasSubstr("SERVING"));
    EXPECT_EQ(Attend(address + " -service=no.such.Service").code, 3);
    server.SetServing(false);
    EXPECT_EQ(Attend(address).code, 4);
    gone = address;
  }
  EXPECT_EQ(Attend(gone + " -connect-timeout=200ms").code, 2);
}

TEST_F(CliTest, InfoInBothForms) {
  client::FakeServer server(client::EchoHandler);
  const Ended text = Attend("info --addr=" + server.target());
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("9.8.7"));
  const Ended json = Attend("info --output=json --addr=" + server.target());
  EXPECT_THAT(json.out, HasSubstr("\"name\":\"a \\\"device\\\"\""));
  EXPECT_THAT(json.out, HasSubstr("\"data_types\":[\"bf16\"]"));
  // NOLINTNEXTLINE(concurrency-mt-unsafe): one thread
  setenv("ATTEND_ADDR", server.target().c_str(), 1);
  EXPECT_EQ(Attend("info").code, 0) << "the address from the environment";
  // NOLINTNEXTLINE(concurrency-mt-unsafe): one thread
  unsetenv("ATTEND_ADDR");
  EXPECT_EQ(Attend("info --timeout=300ms --addr=127.0.0.1:1").code, 1);
}

TEST_F(CliTest, RunStoresAndComparesEveryType) {
  client::FakeServer server(client::EchoHandler);
  for (const auto& [type, flag] :
       {std::pair{NpyType::kF32, ""}, {NpyType::kF16, ""}, {NpyType::kU16, " --dtype=bf16"}}) {
    const std::string run = "run --addr=" + server.target() + Inputs(type) + flag;
    const Ended stored = Attend(run + " --o=" + Path("o.npy") + " --lse=" + Path("lse.npy"));
    EXPECT_EQ(stored.code, 0) << stored.err;
    EXPECT_EQ(ReadNpy(Path("o.npy"))->data, ReadNpy(Path("echo.npy"))->data);
    EXPECT_EQ(ReadNpy(Path("lse.npy"))->shape, std::vector<int64_t>{2});
    const Ended same = Attend(run + " --tolerance=0 --expect=" + Path("echo.npy"));
    EXPECT_EQ(same.code, 0) << same.err << same.out;
    EXPECT_THAT(same.out, HasSubstr("as expected"));
    const Ended wrong = Attend(run + " --expect=" + Path("q.npy"));
    EXPECT_EQ(wrong.code, 1);
    EXPECT_THAT(wrong.out, HasSubstr("WRONG"));
    const Ended json = Attend(run + " --output=json --expect=" + Path("echo.npy"));
    EXPECT_THAT(json.out, HasSubstr("\"within\":true"));
    EXPECT_THAT(json.out, HasSubstr("\"batch_requests\":3"));
  }
}

TEST_F(CliTest, RunSendsItsOptions) {
  v1::AttendRequest seen;
  client::FakeServer server([&](const v1::AttendRequest& request, v1::AttendResponse* response) {
    seen = request;
    return client::EchoHandler(request, response);
  });
  const Ended ended =
      Attend("run --addr=" + server.target() + Inputs(NpyType::kF32) +
             " --causal --scale=0 --window-left=0 --window-right=7 --softcap=2.5 --q-lens=1 "
             "--kv-lens=2 --cu-seqlens-q=0,3 --cu-seqlens-k=0,1,3 --priority=low --request-id=me "
             "--bias=" +
             Path("q.npy") + " --alibi-slopes=" + Path("k.npy") + " --sinks=" + Path("v.npy"));
  ASSERT_EQ(ended.code, 0) << ended.err;
  EXPECT_TRUE(seen.causal());
  EXPECT_TRUE(seen.has_softmax_scale());
  EXPECT_EQ(seen.softmax_scale(), 0);
  EXPECT_TRUE(seen.window().has_left());
  EXPECT_EQ(seen.window().left(), 0);
  EXPECT_EQ(seen.window().right(), 7);
  EXPECT_EQ(seen.softcap(), 2.5);
  EXPECT_EQ(seen.q_lens(0), 1);
  EXPECT_EQ(seen.kv_lens(0), 2);
  EXPECT_EQ(seen.cu_seqlens_q_size(), 2);
  EXPECT_EQ(seen.cu_seqlens_k(1), 1);
  EXPECT_EQ(seen.priority(), v1::PRIORITY_LOW);
  EXPECT_EQ(seen.request_id(), "me");
  EXPECT_TRUE(seen.has_bias() && seen.has_alibi_slopes() && seen.has_sinks());
  EXPECT_FALSE(seen.return_lse());
}

TEST_F(CliTest, RunFailsPlainly) {
  client::FakeServer server([](const v1::AttendRequest&, v1::AttendResponse*) {
    return client::RichError(grpc::StatusCode::INVALID_ARGUMENT, "k.shape: 3 is not 4", "SHAPE",
                             "k.shape");
  });
  const std::string run = "run --addr=" + server.target();
  const Ended refused = Attend(run + Inputs(NpyType::kF32) + " --request-id=mine");
  EXPECT_EQ(refused.code, 1);
  for (const char* text : {"INVALID_ARGUMENT", "k.shape", "SHAPE", "mine"}) {
    EXPECT_THAT(refused.err, HasSubstr(text));
  }
  EXPECT_THAT(refused.out, IsEmpty());
  EXPECT_EQ(Attend(run + Inputs(NpyType::kU16)).code, 1) << "uint16 without --dtype=bf16";
  EXPECT_EQ(Attend(run + Inputs(NpyType::kF64)).code, 1);
  EXPECT_EQ(Attend(run + Inputs(NpyType::kF16) + " --dtype=bf16").code, 1);
  const Ended absent = Attend(run + " --q=/nonexistent.npy --k=b --v=c");
  EXPECT_EQ(absent.code, 1);
  EXPECT_THAT(absent.err, HasSubstr("/nonexistent.npy"));
}

constexpr char kSmall[] = " --rows=1:30 --heads=2:4 --head-dims=16 --in-flight=4 --warm-up=2";

TEST_F(CliTest, BenchSeesWrongAnswers) {
  client::FakeServer server(client::EchoHandler);
  const std::string bench = "bench --requests=30 --addr=" + server.target() + kSmall;
  const Ended wrong = Attend(bench + " --check-share=1");
  EXPECT_EQ(wrong.code, 1);
  EXPECT_THAT(wrong.out, HasSubstr("30 WRONG"));
  EXPECT_THAT(wrong.err, HasSubstr("not"));
  const Ended unchecked = Attend(bench + " --no-check");
  EXPECT_EQ(unchecked.code, 0) << unchecked.err;
  EXPECT_THAT(unchecked.out, HasSubstr("30 sent, 30 ok"));
  EXPECT_THAT(unchecked.err, IsEmpty()) << "no bar without a terminal";
}

TEST_F(CliTest, BenchReportsErrorsTracesAndLimits) {
  client::FakeServer server([](const v1::AttendRequest& request, v1::AttendResponse* response) {
    if (request.causal()) {
      return client::RichError(grpc::StatusCode::UNIMPLEMENTED, "causal: not here", "OPTION",
                               "causal");
    }
    return client::EchoHandler(request, response);
  });
  const std::string bench = "bench --no-check --requests=40 --addr=" + server.target() + kSmall;
  const Ended failed = Attend(bench + " --seed=7 --output=json --trace=" + Path("trace.csv"));
  EXPECT_EQ(failed.code, 1);
  EXPECT_THAT(failed.out, HasSubstr("\"seed\":\"7\""));
  EXPECT_THAT(failed.out, HasSubstr("\"code\":\"UNIMPLEMENTED\""));
  const std::string trace = Read("trace.csv");
  EXPECT_EQ(std::count(trace.begin(), trace.end(), '\n'), 41);
  EXPECT_THAT(trace, HasSubstr("UNIMPLEMENTED"));
  EXPECT_EQ(Attend(bench + " --allow-errors").code, 0);
  EXPECT_EQ(Attend(bench + " --allow-errors --stream").code, 0);
  const Ended slow = Attend(bench + " --causal=0 --max-p99=1ns");
  EXPECT_EQ(slow.code, 1);
  EXPECT_THAT(slow.err, HasSubstr("99th percentile"));
  EXPECT_EQ(Attend(bench + " --causal=0 --max-p99=1h --rate=2000").code, 0);
  EXPECT_THAT(Attend(bench + " --causal=0 --progress=always").err, HasSubstr("requests"));
}

TEST_F(CliTest, BenchWithoutAServer) {
  const Ended ended = Attend("bench --requests=2 --addr=127.0.0.1:1 --timeout=1s");
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, HasSubstr("127.0.0.1:1"));
  EXPECT_THAT(ended.err, Not(HasSubstr("WRONG")));
}

}  // namespace
}  // namespace attend::cli
