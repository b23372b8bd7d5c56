#include "server/rpc/credential_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "tests/testing/certificates.h"

namespace attend {
namespace {

using testing::Authority;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::PemPair;

class CredentialFilesTest : public ::testing::Test {
 protected:
  CredentialFilesTest() {
    directory_ = ::testing::TempDir() + "/credentials-XXXXXX";
    EXPECT_NE(mkdtemp(directory_.data()), nullptr);
    options_.tls_cert = Write("cert", good_.cert);
    options_.tls_key = Write("key", good_.key);
    options_.tls_client_ca = Write("ca", authority_.cert());
    options_.auth_token_file =
        Write("tokens", "# for the team\nfirst-token-0123456789\n\n  second-token-0123456789 \n");
  }
  ~CredentialFilesTest() override {
    for (const char* name : {"cert", "key", "ca", "tokens"})
      unlink((directory_ + "/" + name).c_str());
    rmdir(directory_.c_str());
  }
  std::string Write(const std::string& name, const std::string& content) {
    const std::string path = directory_ + "/" + name;
    std::ofstream(path) << content;
    return path;
  }
  std::unique_ptr<CredentialFiles> Open() {
    auto files = CredentialFiles::Open(
        options_, [this](const absl::Status& status) { news_.push_back(status); });
    EXPECT_TRUE(files.ok()) << files.status();
    return *std::move(files);
  }

  Authority authority_{"test authority"};
  PemPair good_ = authority_.Issue("server");
  std::string directory_;
  SecurityOptions options_;
  std::vector<absl::Status> news_;
};

TEST_F(CredentialFilesTest, ReadsAGoodSet) {
  const auto files = Open();
  EXPECT_EQ(files->current()->cert_pem, good_.cert);
  EXPECT_EQ(files->current()->token_digests.size(), 2u);
  const auto left = files->current()->expiry - std::chrono::system_clock::now();
  EXPECT_GT(left, std::chrono::hours(23));
  EXPECT_LT(left, std::chrono::hours(25));
  EXPECT_TRUE(files->Accepts("first-token-0123456789"));
  EXPECT_TRUE(files->Accepts("second-token-0123456789"));
  for (const char* wrong : {"", "first-token-012345678", "first-token-01234567890",
                            "First-token-0123456789", "# for the team"}) {
    EXPECT_FALSE(files->Accepts(wrong)) << wrong;
  }
}

TEST_F(CredentialFilesTest, EachBadFileIsNamedInOneLineWithoutItsContent) {
  const PemPair other = authority_.Issue("other");
  const PemPair expired = authority_.Issue("old", -7200, -3600);
  const PemPair future = authority_.Issue("young", 3600, 7200);
  const struct {
    const char* file;
    std::string content, text;
  } rows[] = {
      {"cert", "", "is empty"},
      {"cert", "no certificate at all", "no PEM certificate"},
      {"cert", good_.cert.substr(0, 200), "no PEM certificate"},
      {"cert", good_.cert + "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
       "broken"},
      {"cert", other.cert, "is not the key of the certificate"},
      {"cert", std::string(2 << 20, 'x'), "larger than 1 MiB"},
      {"key", "", "is empty"},
      {"key", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "private key"},
      {"key", other.key, "is not the key of the certificate"},
      {"ca", "nothing", "no PEM certificate"},
      {"tokens", "", "is empty"},
      {"tokens", "# only a comment\n", "holds no token"},
      {"tokens", "short\n", "line 1"},
      {"tokens", "good-token-0123456789\nwith space 0123456789\n", "line 2"},
  };
  const std::string paths[] = {options_.tls_cert, options_.tls_key, options_.tls_client_ca,
                               options_.auth_token_file};
  for (const auto& row : rows) {
    Write("cert", good_.cert);
    Write("key", good_.key);
    Write("ca", authority_.cert());
    Write("tokens", "good-token-0123456789\n");
    ASSERT_TRUE(ReadCredentials(options_).ok());
    Write(row.file, row.content);
    const absl::Status status = ReadCredentials(options_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << row.file << row.text;
    const std::string message(status.message());
    EXPECT_THAT(message, HasSubstr(row.text));
    EXPECT_THAT(message, HasSubstr(directory_));
    EXPECT_THAT(message, Not(HasSubstr("\n")));
    EXPECT_THAT(message, Not(HasSubstr("0123456789")));
    EXPECT_THAT(message, Not(HasSubstr("AAAA")));
  }
  for (const auto& [pair, text] : {std::pair(expired, "has expired"), {future, "not valid yet"}}) {
    Write("tokens", "good-token-0123456789\n");
    Write("cert", pair.cert);
    Write("key", pair.key);
    EXPECT_THAT(std::string(ReadCredentials(options_).status().message()), HasSubstr(text));
  }
  options_.tls_cert = directory_ + "/missing";
  EXPECT_THAT(std::string(ReadCredentials(options_).status().message()),
              HasSubstr("cannot be read"));
}

TEST_F(CredentialFilesTest, ABadReloadKeepsTheLastGoodSet) {
  const auto files = Open();
  EXPECT_FALSE(files->Reload());  // nothing new
  EXPECT_TRUE(news_.empty());

  const PemPair next = authority_.Issue("next");
  Write("cert", next.cert);  // half of a pair
  EXPECT_FALSE(files->Reload());
  EXPECT_FALSE(files->Reload());
  ASSERT_EQ(news_.size(), 1u);  // told once
  EXPECT_FALSE(news_[0].ok());
  EXPECT_EQ(files->current()->cert_pem, good_.cert);
  EXPECT_EQ(files->version(), 1u);

  Write("key", next.key);
  EXPECT_TRUE(files->Reload());
  ASSERT_EQ(news_.size(), 2u);
  EXPECT_TRUE(news_[1].ok());
  EXPECT_EQ(files->current()->cert_pem, next.cert);
  EXPECT_EQ(files->version(), 2u);

  Write("tokens", "third-token-0123456789\n");
  EXPECT_TRUE(files->Reload());
  EXPECT_FALSE(files->Accepts("first-token-0123456789"));
  EXPECT_TRUE(files->Accepts("third-token-0123456789"));
  unlink(options_.auth_token_file.c_str());
  EXPECT_FALSE(files->Reload());
  EXPECT_TRUE(files->Accepts("third-token-0123456789"));
}

TEST(SecurityOptionsTest, Contradictions) {
  const auto with = [](auto set) {
    SecurityOptions options;
    set(&options);
    return Validate(options);
  };
  using O = SecurityOptions*;
  EXPECT_TRUE(Validate(SecurityOptions()).ok());
  EXPECT_FALSE(with([](O o) { o->tls_cert = "c"; }).ok());
  EXPECT_FALSE(with([](O o) { o->tls_key = "k"; }).ok());
  EXPECT_TRUE(with([](O o) { o->tls_cert = "c", o->tls_key = "k"; }).ok());
  EXPECT_FALSE(with([](O o) { o->tls_client_ca = "a"; }).ok());
  EXPECT_FALSE(with([](O o) { o->auth_token_file = "t"; }).ok());
  EXPECT_TRUE(with([](O o) { o->auth_token_file = "t", o->insecure_auth = true; }).ok());
  EXPECT_FALSE(with([](O o) { o->insecure_auth = true; }).ok());
  EXPECT_FALSE(with([](O o) { o->reload_interval = std::chrono::milliseconds(0); }).ok());
}

}  // namespace
}  // namespace attend
