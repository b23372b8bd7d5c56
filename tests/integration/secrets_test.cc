// Tokens, keys and certificates never come out of the process: not in logs at any level, not in
// errors, not on its pages.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/testing/certificates.h"
#include "tests/testing/server_fixture.h"
#include "tests/testing/server_process.h"

namespace attend {
namespace {

using testing::Authority;
using testing::Call;
using testing::CallResult;
using testing::Eventually;
using ::testing::HasSubstr;
using testing::HttpGet;
using testing::MakeRequest;
using testing::PemPair;
using testing::Process;
using testing::Random;
using testing::ServerBinary;
using testing::ServerProcess;

class SecretsTest : public ::testing::Test {
 protected:
  SecretsTest() {
    std::string pattern = ::testing::TempDir() + "/secrets-XXXXXX";
    directory_ = mkdtemp(pattern.data());
  }
  ~SecretsTest() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const { return directory_ + "/" + name; }
  // Readers see the whole file or the old one.
  std::string Write(const std::string& name, const std::string& content) const {
    std::ofstream(Path(name + ".new")) << content;
    std::filesystem::rename(Path(name + ".new"), Path(name));
    return Path(name);
  }

  // From now on `text`, and each long word of it, must not be seen.
  const std::string& Hide(const std::string& text) {
    for (const absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" \r\n"))) {
      if (word.size() >= 12 && !absl::StrContains(word, "-----")) hidden_.emplace_back(word);
    }
    return text;
  }
  PemPair Hide(PemPair pair) {
    Hide(pair.cert);
    Hide(pair.key);
    return pair;
  }
  std::string NewToken() {
    std::string token;
    for (int i = 0; i < 40; ++i) token += static_cast<char>('a' + random_.Between(0, 25));
    return Hide(token);
  }

  void ExpectClean(const std::string& text, const std::string& where) const {
    for (const std::string& secret : hidden_) {
      // A part of it is as bad.
      EXPECT_THAT(text, ::testing::Not(HasSubstr(secret.substr(0, 12)))) << where;
    }
  }
  void ExpectClean(Process* process, const std::string& where) const {
    ExpectClean(process->Stdout(), where + ", stdout");
    ExpectClean(process->Stderr(), where + ", stderr");
  }

  CallResult CallWith(const ServerProcess& server, const std::string& root,
                      const std::string& authorization, const PemPair& own = {}) {
    grpc::SslCredentialsOptions tls;
    tls.pem_root_certs = root;
    tls.pem_cert_chain = own.cert;
    tls.pem_private_key = own.key;
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    const auto stub = v1::AttentionService::NewStub(grpc::CreateCustomChannel(
        absl::StrCat("127.0.0.1:", server.grpc_port()), grpc::SslCredentials(tls), arguments));
    CallResult result =
        Call(stub.get(), MakeRequest({}, &random_), [&](grpc::ClientContext* context) {
          context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
          if (!authorization.empty()) context->AddMetadata("authorization", authorization);
        });
    ExpectClean(result.status.error_message(), "reply");
    ExpectClean(result.status.error_details(), "details");
    return result;
  }

  Random random_{testing::MixSeed(testing::TestSeed(), "secrets")};
  const Authority authority_{"the authority"};
  std::string directory_;
  std::vector<std::string> hidden_;
};

// Handshakes, good and bad tokens, good and bad new files, with all that can be logged being
// logged, gRPC's own tracing included.
TEST_F(SecretsTest, NothingOfThemIsLoggedOrAnswered) {
  for (const char* level : {"debug", "info", "warn", "error", "off"}) {
    const std::string token = NewToken();
    const PemPair pair = Hide(authority_.Issue("server"));
    const std::string tokens = Write("tokens", token + "\n");
    const std::string cert = Write("cert", pair.cert), key = Write("key", pair.key);
    ServerProcess server(
        {"--tls-cert=" + cert, "--tls-key=" + key, "--auth-token-file=" + tokens,
         "--tls-client-ca=" + Write("ca", authority_.cert()), "--reload-interval=10ms",
         "--log-requests=true", "--log-lines-per-second=0", absl::StrCat("--log-level=", level)},
        {"GRPC_VERBOSITY=DEBUG", "GRPC_TRACE=all"});
    const PemPair client = authority_.Issue("client");
    EXPECT_TRUE(CallWith(server, authority_.cert(), "Bearer " + token, client).status.ok());
    for (const std::string& bad : {NewToken(), "Bearer " + NewToken(), "Basic " + NewToken(),
                                   "Bearer " + token + "x", token}) {
      EXPECT_EQ(CallWith(server, authority_.cert(), bad, client).status.error_code(),
                grpc::StatusCode::UNAUTHENTICATED);
    }
    CallWith(server, authority_.cert(), "Bearer " + token);  // without a certificate

    const auto failures = [&] {
      return server.Metric("attend_credentials_reload_failures_total").value_or(0);
    };
    const auto fails = [&](const std::string& file, const std::string& content) {
      const double before = failures();
      Write(file, content);
      EXPECT_TRUE(Eventually([&] { return failures() > before; })) << file;
    };
    fails("tokens", Hide(std::string("tooshort-secret")) + "\n");
    Write("tokens", token + "\n");
    fails("key", Hide(authority_.Issue("other")).key);  // of another certificate
    fails("key", pair.key.substr(0, pair.key.size() / 2));
    Write("key", pair.key);
    // Half of it, or the wrong file: the complaint is one, and told once.
    fails("cert", random_.Chance(0.5) ? pair.cert.substr(0, pair.cert.size() / 2) : pair.key);
    Write("cert", pair.cert);
    const std::string newer = NewToken();
    Write("tokens", newer + "\n");
    EXPECT_TRUE(Eventually([&] { return server.Metric("attend_credentials_reloads_total") == 1; }));
    EXPECT_TRUE(CallWith(server, authority_.cert(), "Bearer " + newer, client).status.ok());

    for (const char* page : {"/metrics", "/version", "/readyz", "/log-level"}) {
      ExpectClean(HttpGet(server.http_port(), page).body, page);
    }
    EXPECT_EQ(server.Terminate(), 0);
    ExpectClean(&server.process(), level);
    if (std::string(level) == "off") {
      EXPECT_EQ(server.process().Stderr(), "");
    }
    if (std::string(level) == "debug") {
      EXPECT_THAT(server.process().Stderr(), HasSubstr("last good ones stay in use"));
      EXPECT_THAT(server.process().Stderr(), HasSubstr("UNAUTHENTICATED"));
    }
  }
}

// A start that fails says which file is at fault, in one line, and nothing of what is in it.
TEST_F(SecretsTest, BadFilesStopTheStartWithOneLine) {
  const std::string token = NewToken();
  const PemPair pair = Hide(authority_.Issue("server")), other = Hide(authority_.Issue("other"));
  const PemPair old = Hide(authority_.Issue("old", -7200, -3600));
  const PemPair future = Hide(authority_.Issue("future", 3600, 7200));
  const std::string cert = "--tls-cert=" + Write("cert", pair.cert);
  const std::string key = "--tls-key=" + Write("key", pair.key);
  const std::string tokens = "--auth-token-file=" + Write("tokens", token + "\n");
  const std::string missing = Path("missing");
  const std::string half = pair.key.substr(0, pair.key.size() / 2);
  struct Row {
    std::vector<std::string> args;
    std::string named;
  };
  const std::vector<Row> rows = {
      {{"--tls-cert=" + missing, key}, missing},
      {{cert, "--tls-key=" + missing}, missing},
      {{"--tls-cert=" + directory_, key}, directory_},
      {{"--tls-cert=" + Write("empty", ""), key}, Path("empty")},
      {{"--tls-cert=" + Path("key"), key}, Path("key")},
      {{cert, "--tls-key=" + Path("cert")}, Path("cert")},
      {{cert, "--tls-key=" + Write("half", half)}, Path("half")},
      {{cert, "--tls-key=" + Write("other", other.key)}, Path("other")},
      {{"--tls-cert=" + Write("oldcert", old.cert), "--tls-key=" + Write("oldkey", old.key)},
       Path("oldcert")},
      {{"--tls-cert=" + Write("newcert", future.cert), "--tls-key=" + Write("newkey", future.key)},
       Path("newcert")},
      {{cert, key, "--tls-client-ca=" + missing}, missing},
      {{cert, key, "--tls-client-ca=" + Path("tokens")}, Path("tokens")},
      {{cert, key, "--auth-token-file=" + missing}, missing},
      {{cert, key, "--auth-token-file=" + Write("none", "# nothing\n")}, Path("none")},
      {{cert, key,
        "--auth-token-file=" + Write("short", Hide(std::string("short-secret!")) + "\n")},
       Path("short")},
      {{cert, key, "--auth-token-file=" + Write("spaced", token + " " + NewToken() + "\n")},
       Path("spaced")},
      {{tokens}, "--auth-token-file"},  // not without encryption
      {{"--config-file=" + missing}, missing},
      {{"--config-file=" + Write("conf", "tls-key\n" + pair.key)}, Path("conf")},
      {{"--config-file=" + Path("tokens")}, Path("tokens")},
  };
  for (const Row& row : rows) {
    std::vector<std::string> command = {ServerBinary(), "--backend=reference",
                                        "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0",
                                        "--log-level=debug"};
    command.insert(command.end(), row.args.begin(), row.args.end());
    Process process(command, {"GRPC_VERBOSITY=DEBUG", "GRPC_TRACE=all"});
    const std::optional<int> code = process.Wait();
    EXPECT_TRUE(code == 1 || code == 2) << row.named;
    const std::string text = process.Stderr();
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
    EXPECT_THAT(text, HasSubstr(row.named));
    ExpectClean(&process, row.named);
  }
}

}  // namespace
}  // namespace attend
