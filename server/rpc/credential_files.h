// Certificate, key, client authorities and tokens, as files: read, checked as a whole, and read
// again.
//
// What is served is always a set that passed every check. A bad set of new files changes nothing
// but the counters: the last good one stays. Contents are compared, not times, so that every way of
// replacing files works.

#ifndef ATTEND_SERVER_RPC_CREDENTIAL_FILES_H_
#define ATTEND_SERVER_RPC_CREDENTIAL_FILES_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/engine/mutex.h"

namespace attend {

struct SecurityOptions {
  std::string tls_cert;       // PEM: the server's certificate, then its issuers
  std::string tls_key;        // PEM: its private key
  std::string tls_client_ca;  // PEM: who may sign client certificates; empty: none are asked for
  // One token a line, 16 to 1024 printable characters; # starts a comment. Several may be valid at
  // once, so that they can be replaced one by one.
  std::string auth_token_file;
  bool insecure_auth = false;  // take tokens over connections that are not encrypted
  std::chrono::milliseconds reload_interval{1000};

  bool tls() const { return !tls_cert.empty(); }
  bool tokens() const { return !auth_token_file.empty(); }
};

// INVALID_ARGUMENT in one line when the options contradict each other.
absl::Status Validate(const SecurityOptions& options);

// One checked set. Immutable.
struct Credentials {
  std::string cert_pem, key_pem, client_ca_pem;
  std::chrono::system_clock::time_point expiry;        // of the certificate or an issuer
  std::vector<std::array<uint8_t, 32>> token_digests;  // SHA-256
};

// Reads and checks all files. INVALID_ARGUMENT in one line naming the file; no content in it.
// Refuses a certificate that is not valid now, a key of another certificate, and an empty token
// file.
absl::StatusOr<Credentials> ReadCredentials(const SecurityOptions& options);

// Holds the last good set. Thread-safe.
class CredentialFiles {
 public:
  // `on_reload` hears of every change: OK for a new set, an error once for each bad one.
  static absl::StatusOr<std::unique_ptr<CredentialFiles>> Open(
      const SecurityOptions& options, std::function<void(const absl::Status&)> on_reload);

  std::shared_ptr<const Credentials> current() const;
  // Counts up with each new set.
  uint64_t version() const;

  // Looks at the files. Returns whether there is a new set.
  bool Reload();

  // Whether `token` is one of the current ones; takes the same time whichever is wrong.
  bool Accepts(std::string_view token) const;

 private:
  CredentialFiles(SecurityOptions options, std::function<void(const absl::Status&)> on_reload,
                  Credentials first);

  const SecurityOptions options_;
  const std::function<void(const absl::Status&)> on_reload_;
  mutable Mutex mutex_;
  std::shared_ptr<const Credentials> current_ ABSL_GUARDED_BY(mutex_);
  uint64_t version_ ABSL_GUARDED_BY(mutex_) = 1;
  std::string last_error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace attend

#endif  // ATTEND_SERVER_RPC_CREDENTIAL_FILES_H_
