#include "server/rpc/server_credentials.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "grpc/grpc_security.h"
#include "grpc/slice.h"
#include "grpcpp/security/auth_metadata_processor.h"

namespace attend {
namespace {

std::string_view View(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
}

// Over the C core, whose certificate fetcher is asked at every handshake: the C++ layer of this
// version can only watch files by itself, and serves nobody while they are half written.
class FileCredentials final : public grpc::ServerCredentials {
 public:
  FileCredentials(const SecurityOptions& options, const CredentialFiles* files,
                  std::function<void()> on_refused)
      : tokens_{files, std::move(on_refused)} {
    if (options.tls()) {
      fetch_.files = files;
      credentials_ = grpc_ssl_server_credentials_create_with_options(
          grpc_ssl_server_credentials_create_options_using_config_fetcher(
              options.tls_client_ca.empty()
                  ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                  : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY,
              &Fetch::Run, &fetch_));
    } else {
      credentials_ = grpc_insecure_server_credentials_create();
    }
    if (options.tokens()) {
      grpc_server_credentials_set_auth_metadata_processor(credentials_,
                                                          {&Tokens::Check, [](void*) {}, &tokens_});
    }
  }
  ~FileCredentials() override { grpc_server_credentials_release(credentials_); }

  // Tokens are ours to check.
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  // gRPC asks under its own lock, one handshake at a time.
  struct Fetch {
    const CredentialFiles* files = nullptr;
    uint64_t version = 0;

    static grpc_ssl_certificate_config_reload_status Run(
        void* self, grpc_ssl_server_certificate_config** config) {
      Fetch* const fetch = static_cast<Fetch*>(self);
      const uint64_t version = fetch->files->version();
      if (version == fetch->version) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
      const std::shared_ptr<const Credentials> now = fetch->files->current();
      const grpc_ssl_pem_key_cert_pair pair = {now->key_pem.c_str(), now->cert_pem.c_str()};
      // gRPC insists on authorities; without a demand for client certificates it never uses them.
      const std::string& roots = now->client_ca_pem.empty() ? now->cert_pem : now->client_ca_pem;
      *config = grpc_ssl_server_certificate_config_create(roots.c_str(), &pair, 1);
      fetch->version = version;
      return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
    }
  };

  struct Tokens {
    const CredentialFiles* files;
    std::function<void()> on_refused;

    static void Check(void* self, grpc_auth_context*, const grpc_metadata* metadata, size_t count,
                      grpc_process_auth_metadata_done_cb done, void* user_data) {
      constexpr std::string_view kScheme = "Bearer ";
      constexpr std::string_view kHealth = "/grpc.health.v1.Health/";
      const Tokens& tokens = *static_cast<Tokens*>(self);
      bool good = false;
      const grpc_metadata* header = nullptr;
      for (size_t i = 0; i < count; ++i) {
        const std::string_view key = View(metadata[i].key), value = View(metadata[i].value);
        if (key == ":path" && value.substr(0, kHealth.size()) == kHealth) good = true;
        if (key == "authorization") header = &metadata[i];
      }
      if (header != nullptr) {
        const std::string_view value = View(header->value);
        if (value.substr(0, kScheme.size()) == kScheme) {
          good = good || tokens.files->Accepts(value.substr(kScheme.size()));
        }
      }
      if (!good) tokens.on_refused();
      // Consumed: handlers never see the token.
      done(user_data, header, header == nullptr ? 0 : 1, nullptr, 0,
           good ? GRPC_STATUS_OK : GRPC_STATUS_UNAUTHENTICATED,
           good ? nullptr : "a valid token is needed: authorization: Bearer TOKEN");
    }
  };

  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  Fetch fetch_;
  Tokens tokens_;
  grpc_server_credentials* credentials_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> MakeServerCredentials(const SecurityOptions& options,
                                                               const CredentialFiles* files,
                                                               std::function<void()> on_refused) {
  if (!options.tls() && !options.tokens()) return grpc::InsecureServerCredentials();
  return std::make_shared<FileCredentials>(options, files, std::move(on_refused));
}

}  // namespace attend
