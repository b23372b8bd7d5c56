// TLS, client certificates, tokens, server info, health, streams that break.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <grpcpp/security/server_credentials.h>

#include "attend/client.h"
#include "tests/client/fake_service.h"
#include "tests/client/values.h"

namespace attend::client {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

class SecurityTest : public ::testing::Test {
 protected:
  SecurityTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "attend_tls_XXXXXX").string();
    directory_ = mkdtemp(pattern.data());
  }
  ~SecurityTest() override { std::filesystem::remove_all(directory_); }

  std::string Path(const std::string& name) const { return (directory_ / name).string(); }

  // NAME.pem and NAME.key, signed by themselves, for the DNS name.
  bool MakeCertificate(const std::string& name, const std::string& dns) const {
    const std::string command =
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
        "-keyout " +
        Path(name + ".key") + " -out " + Path(name + ".pem") + " -subj /CN=" + dns +
        " -addext subjectAltName=DNS:" + dns + " >/dev/null 2>&1";
    // NOLINTNEXTLINE(concurrency-mt-unsafe): nothing here minds
    return std::system(command.c_str()) == 0;
  }

  std::string Read(const std::string& name) const {
    std::ostringstream content;
    content << std::ifstream(Path(name)).rdbuf();
    return content.str();
  }

  void Write(const std::string& name, const std::string& content) const {
    std::ofstream(Path(name)) << content;
  }

  std::shared_ptr<grpc::ServerCredentials> ServerCredentials(bool ask_client) const {
    grpc::SslServerCredentialsOptions options;
    options.pem_key_cert_pairs.push_back({Read("server.key"), Read("server.pem")});
    if (ask_client) {
      options.pem_root_certs = Read("client.pem");
      options.client_certificate_request =
          GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
    }
    return grpc::SslServerCredentials(options);
  }

  static absl::Status Try(const std::string& target, ClientOptions options) {
    options.channels = 1;
    options.retry.max_attempts = 1;
    absl::StatusOr<std::unique_ptr<Client>> client = Client::Create(target, options);
    if (!client.ok()) return client.status();
    const Values values(300, 2, 64);
    const absl::StatusOr<AttendResult> result = (*client)->Attend(values.inputs());
    EXPECT_TRUE(!result.ok() || values.IsEcho(result->o));
    return result.status();
  }

  std::filesystem::path directory_;
};

TEST_F(SecurityTest, TlsNeedsTheRightRootAndName) {
  ASSERT_TRUE(MakeCertificate("server", "attend.test")) << "openssl is needed";
  ASSERT_TRUE(MakeCertificate("other", "attend.test"));
  FakeServer server(EchoHandler, {.credentials = ServerCredentials(false)});
  ClientOptions options;
  options.tls.enabled = true;
  options.tls.ca_file = Path("server.pem");
  options.tls.server_name = "attend.test";
  EXPECT_TRUE(Try(server.target(), options).ok()) << Try(server.target(), options);
  options.mode = CallMode::kStream;
  EXPECT_TRUE(Try(server.target(), options).ok());
  options.mode = CallMode::kUnary;
  options.tls.server_name = "elsewhere.test";
  EXPECT_EQ(Try(server.target(), options).code(), absl::StatusCode::kUnavailable);
  options.tls.server_name = "attend.test";
  options.tls.ca_file = Path("other.pem");
  EXPECT_EQ(Try(server.target(), options).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Try(server.target(), {}).code(), absl::StatusCode::kUnavailable) << "plaintext";
}

TEST_F(SecurityTest, ClientCertificates) {
  ASSERT_TRUE(MakeCertificate("server", "attend.test")) << "openssl is needed";
  ASSERT_TRUE(MakeCertificate("client", "client.test"));
  FakeServer server(EchoHandler, {.credentials = ServerCredentials(true)});
  ClientOptions options;
  options.tls.enabled = true;
  options.tls.ca_file = Path("server.pem");
  options.tls.server_name = "attend.test";
  EXPECT_EQ(Try(server.target(), options).code(), absl::StatusCode::kUnavailable);
  options.tls.cert_file = Path("client.pem");
  options.tls.key_file = Path("client.key");
  EXPECT_TRUE(Try(server.target(), options).ok()) << Try(server.target(), options);
}

TEST_F(SecurityTest, TokensTravelAndRotate) {
  FakeServer server(EchoHandler);
  ClientOptions options;
  options.token = "secret-1";
  EXPECT_EQ(Try(server.target(), options).code(), absl::StatusCode::kFailedPrecondition)
      << "without TLS";
  options.allow_insecure_token = true;
  ASSERT_TRUE(Try(server.target(), options).ok());
  EXPECT_EQ(server.last_metadata().find("authorization")->second, "Bearer secret-1");

  options.token.clear();
  options.token_file = Path("token");
  EXPECT_EQ(Try(server.target(), options).code(), absl::StatusCode::kNotFound);
  Write("token", "secret-2\n");
  auto client = *Client::Create(server.target(), options);
  const Values values(2, 1, 8);
  ASSERT_TRUE(client->Attend(values.inputs()).ok());
  EXPECT_EQ(server.last_metadata().find("authorization")->second, "Bearer secret-2");
  Write("token", "secret-3\n");
  ASSERT_TRUE(client->Attend(values.inputs()).ok());
  EXPECT_EQ(server.last_metadata().find("authorization")->second, "Bearer secret-3");
  std::filesystem::remove(Path("token"));
  const absl::Status status = client->Attend(values.inputs()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_THAT(std::string(status.message()), ::testing::Not(HasSubstr("secret")));
}

TEST_F(SecurityTest, RefusesOptionsThatContradictEachOther) {
  const auto code = [](auto change) {
    ClientOptions options;
    change(options);
    return Client::Create("127.0.0.1:1", options).status().code();
  };
  using enum absl::StatusCode;
  EXPECT_EQ(code([](ClientOptions&) {}), kOk);
  EXPECT_EQ(code([](ClientOptions& o) { o.channels = 0; }), kInvalidArgument);
  EXPECT_EQ(code([](ClientOptions& o) { o.retry.max_attempts = 0; }), kInvalidArgument);
  EXPECT_EQ(code([](ClientOptions& o) { o.retry.multiplier = 0.5; }), kInvalidArgument);
  EXPECT_EQ(code([](ClientOptions& o) { o.default_timeout = seconds(0); }), kInvalidArgument);
  EXPECT_EQ(code([](ClientOptions& o) { o.tls.ca_file = "x"; }), kInvalidArgument);
  EXPECT_EQ(code([](ClientOptions& o) {
              o.tls.enabled = true;
              o.tls.ca_file = "/nonexistent/ca.pem";
            }),
            kNotFound);
  EXPECT_EQ(code([](ClientOptions& o) {
              o.tls.enabled = true;
              o.tls.cert_file = "x";
            }),
            kInvalidArgument);
  EXPECT_EQ(code([](ClientOptions& o) {
              o.token = "a";
              o.token_file = "b";
              o.allow_insecure_token = true;
            }),
            kInvalidArgument);
  EXPECT_EQ(Client::Create("").status().code(), kInvalidArgument);
}

TEST(ControlTest, InfoAndHealth) {
  FakeServer server(EchoHandler);
  auto client = *Client::Create(server.target());
  ASSERT_TRUE(client->Connect(seconds(10)).ok());
  const absl::StatusOr<ServerInfo> info = client->GetServerInfo(seconds(10));
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->version, "9.8.7");
  EXPECT_EQ(info->devices.at(0).ordinal, 3);
  EXPECT_EQ(info->devices.at(0).memory_bytes, int64_t{1} << 40);
  EXPECT_EQ(info->limits.max_receive_message_bytes, 12345);
  EXPECT_EQ(info->data_types, std::vector<DataType>{DataType::kBf16});
  EXPECT_EQ(info->features, std::vector<std::string>{"causal"});
  EXPECT_EQ(client->CheckHealth("", seconds(10)).value(), HealthState::kServing);
  EXPECT_EQ(client->CheckHealth("no.such.Service", seconds(10)).status().code(),
            absl::StatusCode::kNotFound);
}

// Trailers exist for unary calls alone; stream errors carry their hint inside.
TEST(ControlTest, PushbackTrailers) {
  FakeServer server([](const v1::AttendRequest&, v1::AttendResponse*) {
    return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full");
  });
  auto client = *Client::Create(server.target());
  const Values values(2, 1, 8);
  server.SetPushback("1");
  EXPECT_EQ(DetailsOf(client->Attend(values.inputs()).status()).attempts, 5);
  EXPECT_EQ(server.calls(), 5);
  server.SetPushback("-1");
  EXPECT_EQ(DetailsOf(client->Attend(values.inputs()).status()).attempts, 1);
}

TEST(ControlTest, ABrokenStreamIsReplaced) {
  FakeServer server(EchoHandler);
  ClientOptions options;
  options.channels = 1;
  options.mode = CallMode::kStream;
  options.retry.initial_backoff = milliseconds(1);
  auto client = *Client::Create(server.target(), options);
  const Values values(200, 2, 64);
  server.BreakStreams(2);
  const absl::StatusOr<AttendResult> result = client->Attend(values.inputs());
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->attempts, 3);
  EXPECT_TRUE(values.IsEcho(result->o));
}

}  // namespace
}  // namespace attend::client
