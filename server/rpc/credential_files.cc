#include "server/rpc/credential_files.h"

#include <openssl/bio.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/sha.h>
#include <openssl/x509.h>

#include <algorithm>
#include <ctime>
#include <fstream>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace attend {
namespace {

constexpr size_t kMaxFileBytes = size_t{1} << 20;
constexpr size_t kMinTokenBytes = 16;
constexpr size_t kMaxTokenBytes = 1024;

template <auto Free>
struct Deleter {
  template <typename T>
  void operator()(T* pointer) const {
    Free(pointer);
  }
};
using Bio = std::unique_ptr<BIO, Deleter<BIO_free>>;
using Certificate = std::unique_ptr<X509, Deleter<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Deleter<EVP_PKEY_free>>;

absl::Status Bad(const char* option, const std::string& path, const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("--", option, ": ", path, " ", what));
}

absl::StatusOr<std::string> ReadFile(const char* option, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Bad(option, path, "cannot be read");
  std::string content(kMaxFileBytes + 1, '\0');
  file.read(content.data(), static_cast<std::streamsize>(content.size()));
  if (file.bad()) return Bad(option, path, "cannot be read");
  content.resize(static_cast<size_t>(file.gcount()));
  if (content.size() > kMaxFileBytes) return Bad(option, path, "is larger than 1 MiB");
  if (content.empty()) return Bad(option, path, "is empty");
  return content;
}

// All certificates of a file, at least one.
absl::StatusOr<std::vector<Certificate>> ParseCertificates(const char* option,
                                                           const std::string& path,
                                                           const std::string& pem) {
  Bio bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  std::vector<Certificate> certificates;
  while (X509* next = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    certificates.emplace_back(next);
  }
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  // The end of the file is an error too, of its own kind.
  if (certificates.empty() || ERR_GET_REASON(error) != PEM_R_NO_START_LINE) {
    return Bad(option, path, "holds no PEM certificate, or a broken one");
  }
  return certificates;
}

std::chrono::system_clock::time_point TimeOf(const ASN1_TIME* time) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return {};
  return std::chrono::system_clock::from_time_t(timegm(&parts));
}

// A password prompt would hang the server.
int NoPassword(char*, int, int, void*) { return 0; }

absl::Status ReadTls(const SecurityOptions& options, Credentials* out) {
  absl::StatusOr<std::string> cert = ReadFile("tls-cert", options.tls_cert);
  if (!cert.ok()) return cert.status();
  absl::StatusOr<std::string> key_pem = ReadFile("tls-key", options.tls_key);
  if (!key_pem.ok()) return key_pem.status();
  absl::StatusOr<std::vector<Certificate>> chain =
      ParseCertificates("tls-cert", options.tls_cert, *cert);
  if (!chain.ok()) return chain.status();

  Bio bio(BIO_new_mem_buf(key_pem->data(), static_cast<int>(key_pem->size())));
  const Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, &NoPassword, nullptr));
  ERR_clear_error();
  if (key == nullptr) {
    return Bad("tls-key", options.tls_key, "holds no PEM private key without a password");
  }
  const bool match = X509_check_private_key(chain->front().get(), key.get()) == 1;
  ERR_clear_error();
  if (!match) {
    return Bad("tls-key", options.tls_key,
               absl::StrCat("is not the key of the certificate in ", options.tls_cert));
  }
  const auto now = std::chrono::system_clock::now();
  out->expiry = std::chrono::system_clock::time_point::max();
  for (const Certificate& certificate : *chain) {
    if (TimeOf(X509_get0_notBefore(certificate.get())) > now) {
      return Bad("tls-cert", options.tls_cert, "is not valid yet");
    }
    out->expiry = std::min(out->expiry, TimeOf(X509_get0_notAfter(certificate.get())));
  }
  if (out->expiry <= now) return Bad("tls-cert", options.tls_cert, "has expired");
  if (!options.tls_client_ca.empty()) {
    absl::StatusOr<std::string> ca = ReadFile("tls-client-ca", options.tls_client_ca);
    if (!ca.ok()) return ca.status();
    absl::Status status = ParseCertificates("tls-client-ca", options.tls_client_ca, *ca).status();
    if (!status.ok()) return status;
    out->client_ca_pem = *std::move(ca);
  }
  out->cert_pem = *std::move(cert);
  out->key_pem = *std::move(key_pem);
  return absl::OkStatus();
}

std::array<uint8_t, 32> DigestOf(absl::string_view token) {
  std::array<uint8_t, 32> digest;
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(), digest.data());
  return digest;
}

absl::Status ReadTokens(const SecurityOptions& options, Credentials* out) {
  absl::StatusOr<std::string> content = ReadFile("auth-token-file", options.auth_token_file);
  if (!content.ok()) return content.status();
  int number = 0;
  for (absl::string_view line : absl::StrSplit(*content, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    if (line.size() < kMinTokenBytes || line.size() > kMaxTokenBytes ||
        !std::all_of(line.begin(), line.end(), [](char c) { return c > 0x20 && c < 0x7f; })) {
      return Bad("auth-token-file", options.auth_token_file,
                 absl::StrCat("line ", number, ": a token is ", kMinTokenBytes, " to ",
                              kMaxTokenBytes, " printable characters without spaces"));
    }
    out->token_digests.push_back(DigestOf(line));
  }
  OPENSSL_cleanse(content->data(), content->size());
  if (out->token_digests.empty()) {
    return Bad("auth-token-file", options.auth_token_file, "holds no token");
  }
  return absl::OkStatus();
}

bool Same(const Credentials& a, const Credentials& b) {
  return a.cert_pem == b.cert_pem && a.key_pem == b.key_pem && a.client_ca_pem == b.client_ca_pem &&
         a.token_digests == b.token_digests;
}

}  // namespace

absl::Status Validate(const SecurityOptions& options) {
  if (options.tls_cert.empty() != options.tls_key.empty()) {
    return absl::InvalidArgumentError("--tls-cert and --tls-key: give both or neither");
  }
  if (!options.tls_client_ca.empty() && !options.tls()) {
    return absl::InvalidArgumentError("--tls-client-ca needs --tls-cert and --tls-key");
  }
  if (options.tokens() && !options.tls() && !options.insecure_auth) {
    return absl::InvalidArgumentError(
        "--auth-token-file without --tls-cert would send tokens in the clear; --insecure-auth "
        "allows it, for use behind a proxy that encrypts");
  }
  if (options.insecure_auth && !options.tokens()) {
    return absl::InvalidArgumentError("--insecure-auth means nothing without --auth-token-file");
  }
  if (options.reload_interval < std::chrono::milliseconds(10)) {
    return absl::InvalidArgumentError("--reload-interval: at least 10ms");
  }
  return absl::OkStatus();
}

absl::StatusOr<Credentials> ReadCredentials(const SecurityOptions& options) {
  Credentials credentials;
  if (options.tls()) {
    if (absl::Status status = ReadTls(options, &credentials); !status.ok()) return status;
  }
  if (options.tokens()) {
    if (absl::Status status = ReadTokens(options, &credentials); !status.ok()) return status;
  }
  return credentials;
}

CredentialFiles::CredentialFiles(SecurityOptions options,
                                 std::function<void(const absl::Status&)> on_reload,
                                 Credentials first)
    : options_(std::move(options)),
      on_reload_(std::move(on_reload)),
      current_(std::make_shared<const Credentials>(std::move(first))) {}

absl::StatusOr<std::unique_ptr<CredentialFiles>> CredentialFiles::Open(
    const SecurityOptions& options, std::function<void(const absl::Status&)> on_reload) {
  absl::StatusOr<Credentials> first = ReadCredentials(options);
  if (!first.ok()) return first.status();
  return std::unique_ptr<CredentialFiles>(
      new CredentialFiles(options, std::move(on_reload), *std::move(first)));
}

std::shared_ptr<const Credentials> CredentialFiles::current() const {
  MutexLock lock(mutex_);
  return current_;
}

uint64_t CredentialFiles::version() const {
  MutexLock lock(mutex_);
  return version_;
}

bool CredentialFiles::Reload() {
  absl::StatusOr<Credentials> next = ReadCredentials(options_);
  bool changed = false;
  absl::Status news = next.status();
  {
    MutexLock lock(mutex_);
    if (next.ok()) {
      last_error_.clear();
      changed = !Same(*next, *current_);
      if (changed) {
        current_ = std::make_shared<const Credentials>(*std::move(next));
        ++version_;
      }
    } else {
      const std::string error(news.message());
      if (error == last_error_) return false;  // told already
      last_error_ = error;
    }
  }
  if (changed || !news.ok()) on_reload_(news);
  return changed;
}

bool CredentialFiles::Accepts(std::string_view token) const {
  const std::array<uint8_t, 32> digest = DigestOf({token.data(), token.size()});
  const std::shared_ptr<const Credentials> credentials = current();
  int found = 0;
  for (const std::array<uint8_t, 32>& good : credentials->token_digests) {
    found |= CRYPTO_memcmp(good.data(), digest.data(), digest.size()) == 0 ? 1 : 0;
  }
  return found != 0;
}

}  // namespace attend
