#include "cli/command.h"

#include <cstdio>

#include "absl/strings/str_cat.h"

namespace attend::cli {

std::optional<int> ParseOrExit(FlagSet& flags, absl::Span<char* const> arguments,
                               int usage_exit_code) {
  const absl::Status status = flags.Parse(arguments);
  if (!status.ok()) {
    const absl::string_view message = status.message();
    return Fail(usage_exit_code, absl::StrCat(message, " (--help lists the flags)"));
  }
  if (flags.help_requested()) {
    std::fputs(flags.Help().c_str(), stdout);
    return kExitOk;
  }
  return std::nullopt;
}

int Fail(int code, std::string_view what) {
  std::fprintf(stderr, "attend: %.*s\n", static_cast<int>(what.size()), what.data());
  return code;
}

std::string Describe(const absl::Status& status) {
  const client::ErrorDetails details = client::DetailsOf(status);
  std::string text = absl::StrCat(absl::StatusCodeToString(status.code()), ": ", status.message());
  if (!details.field.empty()) absl::StrAppend(&text, ", field ", details.field);
  if (!details.reason.empty()) absl::StrAppend(&text, ", reason ", details.reason);
  if (details.retry_after.has_value()) {
    absl::StrAppend(&text, ", retry after ", details.retry_after->count(), " ms");
  }
  if (!details.request_id.empty()) absl::StrAppend(&text, ", request id ", details.request_id);
  return text;
}

void ConnectionFlags::AddTo(FlagSet& flags) {
  flags.Group("Connection");
  flags.Add("addr", &address, "HOST:PORT", "server; unix:/path for a Unix socket", "ATTEND_ADDR");
  flags.Add("channels", &options.channels, "N", "connections; each moves about one core's bytes");
  flags.Add("stream", &stream, "", "one long-lived stream a channel instead of one call a request");
  flags.Add("timeout", &options.default_timeout, "TIME",
            "deadline of one request, retries included; like 500ms or 30s");
  flags.Add("max-attempts", &options.retry.max_attempts, "N", "tries of one request; 1: no retry");
  AddSecurityTo(flags);
}

void ConnectionFlags::AddSecurityTo(FlagSet& flags) {
  flags.Group("Security");
  flags.Add("tls", &options.tls.enabled, "", "encrypt; implied by the other tls flags",
            "ATTEND_CLIENT_TLS");
  flags.Add("tls-ca-cert", &options.tls.ca_file, "FILE",
            "PEM roots that may vouch for the server; empty: the system's",
            "ATTEND_CLIENT_TLS_CA_CERT");
  flags.Add("tls-client-cert", &options.tls.cert_file, "FILE", "PEM certificate of this client",
            "ATTEND_CLIENT_TLS_CLIENT_CERT");
  flags.Add("tls-client-key", &options.tls.key_file, "FILE", "PEM key of that certificate",
            "ATTEND_CLIENT_TLS_CLIENT_KEY");
  flags.Add("tls-server-name", &options.tls.server_name, "NAME",
            "name to expect in the server's certificate; empty: that of --addr",
            "ATTEND_CLIENT_TLS_SERVER_NAME");
  flags.Add("token-file", &options.token_file, "FILE", "bearer token; needs TLS",
            "ATTEND_CLIENT_TOKEN_FILE");
  flags.Add("allow-insecure-token", &options.allow_insecure_token, "",
            "send the token without TLS, readable to anyone on the way");
}

absl::StatusOr<std::unique_ptr<client::Client>> ConnectionFlags::MakeClient() const {
  client::ClientOptions made = options;
  made.mode = stream ? client::CallMode::kStream : client::CallMode::kUnary;
  const client::TlsOptions& tls = options.tls;
  made.tls.enabled = tls.enabled || !tls.ca_file.empty() || !tls.cert_file.empty() ||
                     !tls.key_file.empty() || !tls.server_name.empty();
  return client::Client::Create(address, made);
}

}  // namespace attend::cli
