// TLS, client certificates and tokens against a server in this process.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "tests/testing/certificates.h"
#include "tests/testing/server_fixture.h"

namespace attend {
namespace {

using testing::Answers;
using testing::Authority;
using testing::Call;
using testing::CallResult;
using testing::Eventually;
using testing::MakeRequest;
using testing::MetricOf;
using testing::PemPair;
using testing::Random;
using testing::ServerFixture;

constexpr char kToken[] = "a-token-that-is-long-enough";

class SecurityTest : public ::testing::Test {
 protected:
  SecurityTest() {
    directory_ = ::testing::TempDir() + "/security-XXXXXX";
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    options_ = ServerFixture::Options();
    options_.security.reload_interval = std::chrono::milliseconds(20);
  }
  ~SecurityTest() override {
    fixture_.reset();
    for (const char* name : {"cert", "key", "ca", "tokens"})
      unlink((directory_ + "/" + name).c_str());
    rmdir(directory_.c_str());
  }

  // Readers see the whole file or the old one.
  std::string Write(const std::string& name, const std::string& content) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path + ".new") << content;
    EXPECT_EQ(rename((path + ".new").c_str(), path.c_str()), 0);
    return path;
  }
  void UseTls(const PemPair& pair) {
    options_.security.tls_cert = Write("cert", pair.cert);
    options_.security.tls_key = Write("key", pair.key);
  }
  void UseTokens(const std::string& content) {
    options_.security.auth_token_file = Write("tokens", content);
  }
  void Start() { fixture_.emplace(options_); }

  // One call over a connection of its own.
  CallResult TlsCall(const std::string& root, const PemPair& own = {},
                     const std::string& authorization = "") {
    grpc::SslCredentialsOptions tls;
    tls.pem_root_certs = root;
    tls.pem_cert_chain = own.cert;
    tls.pem_private_key = own.key;
    return CallOver(grpc::SslCredentials(tls), authorization);
  }
  CallResult CallOver(const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                      const std::string& authorization = "") {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
    arguments.SetSslTargetNameOverride("localhost");  // by address: c-ares leaks each name it finds
    const auto stub = v1::AttentionService::NewStub(
        grpc::CreateCustomChannel(fixture_->address(), credentials, arguments));
    request_ = MakeRequest({}, &random_);
    return Call(stub.get(), request_, [&](grpc::ClientContext* context) {
      context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
      if (!authorization.empty()) context->AddMetadata("authorization", authorization);
    });
  }
  std::optional<double> Metric(const std::string& series) {
    return MetricOf(fixture_->server().http_port(), series);
  }

  Random random_{testing::MixSeed(testing::TestSeed(), "security")};
  const Authority authority_{"our authority"};
  const Authority stranger_{"another authority"};
  std::string directory_;
  ServerOptions options_;
  std::optional<ServerFixture> fixture_;
  v1::AttendRequest request_;
};

TEST_F(SecurityTest, Tls) {
  UseTls(authority_.Issue("server"));
  Start();
  const CallResult result = TlsCall(authority_.cert());
  EXPECT_TRUE(result.status.ok() && Answers(request_, result.reply))
      << result.status.error_message();
  EXPECT_EQ(TlsCall(stranger_.cert()).status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(CallOver(grpc::InsecureChannelCredentials()).status.error_code(),
            grpc::StatusCode::UNAVAILABLE);
  EXPECT_TRUE(TlsCall(authority_.cert()).status.ok());
  EXPECT_GT(Metric("attend_tls_certificate_expiry_timestamp_seconds"), 1.6e9);
}

TEST_F(SecurityTest, ClientCertificates) {
  UseTls(authority_.Issue("server"));
  options_.security.tls_client_ca = Write("ca", authority_.cert());
  Start();
  EXPECT_TRUE(TlsCall(authority_.cert(), authority_.Issue("client")).status.ok());
  for (const PemPair& bad :
       {PemPair(), stranger_.Issue("client"), authority_.Issue("client", -7200, -3600)}) {
    EXPECT_EQ(TlsCall(authority_.cert(), bad).status.error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  EXPECT_TRUE(TlsCall(authority_.cert(), authority_.Issue("client")).status.ok());
}

TEST_F(SecurityTest, Tokens) {
  UseTls(authority_.Issue("server"));
  UseTokens(std::string(kToken) + "\n");
  Start();
  EXPECT_TRUE(TlsCall(authority_.cert(), {}, std::string("Bearer ") + kToken).status.ok());
  for (const std::string& bad :
       {std::string(), std::string(kToken), std::string("Bearer "), std::string("Bearer wrong"),
        std::string("bearer ") + kToken, std::string("Basic ") + kToken,
        std::string("Bearer ") + kToken + "x"}) {
    const grpc::Status status = TlsCall(authority_.cert(), {}, bad).status;
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << bad;
    EXPECT_EQ(status.error_message().find(kToken), std::string::npos);
  }
  EXPECT_EQ(Metric(R"(attend_rejected_total{reason="unauthenticated"})"), 7);
}

TEST_F(SecurityTest, TokensInTheClearWhenAllowed) {
  UseTokens(std::string(kToken) + "\n");
  options_.security.insecure_auth = true;
  Start();
  const auto plain = grpc::InsecureChannelCredentials();
  EXPECT_TRUE(CallOver(plain, std::string("Bearer ") + kToken).status.ok());
  EXPECT_EQ(CallOver(plain, "Bearer wrong").status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(CallOver(plain).status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
}

TEST_F(SecurityTest, HealthNeedsNoToken) {
  UseTokens(std::string(kToken) + "\n");
  options_.security.insecure_auth = true;
  Start();
  const auto stub = grpc::health::v1::Health::NewStub(fixture_->Connect());
  grpc::ClientContext context;
  grpc::health::v1::HealthCheckResponse response;
  EXPECT_TRUE(stub->Check(&context, {}, &response).ok());
  EXPECT_EQ(response.status(), grpc::health::v1::HealthCheckResponse::SERVING);
}

TEST_F(SecurityTest, NewFilesAreTakenAndBadOnesAreNot) {
  UseTls(authority_.Issue("first"));
  UseTokens(std::string(kToken) + "\n");
  Start();
  const std::string good = std::string("Bearer ") + kToken;
  ASSERT_TRUE(TlsCall(authority_.cert(), {}, good).status.ok());

  Write("cert", "garbage");
  ASSERT_TRUE(Eventually([&] { return Metric("attend_credentials_reload_failures_total") == 1; }));
  EXPECT_TRUE(TlsCall(authority_.cert(), {}, good).status.ok());  // new handshakes too

  const PemPair second = stranger_.Issue("second");
  Write("key", second.key);
  Write("cert", second.cert);
  ASSERT_TRUE(Eventually([&] { return Metric("attend_credentials_reloads_total") == 1; }));
  EXPECT_TRUE(TlsCall(stranger_.cert(), {}, good).status.ok());
  EXPECT_EQ(TlsCall(authority_.cert(), {}, good).status.error_code(),
            grpc::StatusCode::UNAVAILABLE);

  Write("tokens", "another-token-long-enough\n");
  ASSERT_TRUE(Eventually([&] { return Metric("attend_credentials_reloads_total") == 2; }));
  EXPECT_EQ(TlsCall(stranger_.cert(), {}, good).status.error_code(),
            grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_TRUE(TlsCall(stranger_.cert(), {}, "Bearer another-token-long-enough").status.ok());
}

}  // namespace
}  // namespace attend
