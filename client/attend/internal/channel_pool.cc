#include "attend/internal/channel_pool.h"

#include <climits>
#include <fstream>
#include <sstream>
#include <utility>

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/channel_arguments.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace attend::client {
namespace {

constexpr int kMaxChannels = 256;
constexpr int64_t kMaxFileBytes = 1 << 20;  // certificates and tokens are a few KiB

// gRPC's first reconnect waits a second; a server that restarts is back sooner.
constexpr int kFirstReconnectMs = 100;
constexpr int kLongestReconnectMs = 5000;

absl::StatusOr<std::string> ReadFile(const char* option, const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream content;
  if (!file || !(content << file.rdbuf()) || content.str().empty()) {
    return absl::NotFoundError(absl::StrCat(option, ": cannot read ", path, ", or it is empty"));
  }
  if (content.tellp() > kMaxFileBytes) {
    return absl::InvalidArgumentError(absl::StrCat(option, ": ", path, " is over 1 MiB"));
  }
  return content.str();
}

absl::Status CheckOptions(const std::string& target, const ClientOptions& options) {
  if (target.empty()) return absl::InvalidArgumentError("target: is empty");
  if (options.channels < 1 || options.channels > kMaxChannels) {
    return absl::InvalidArgumentError(
        absl::StrCat("channels: ", options.channels, " is not in 1 to ", kMaxChannels));
  }
  if (options.retry.max_attempts < 1 || options.retry.initial_backoff.count() < 0 ||
      options.retry.max_backoff < options.retry.initial_backoff ||
      !(options.retry.multiplier >= 1)) {
    return absl::InvalidArgumentError(
        "retry: needs max_attempts >= 1, 0 <= initial_backoff <= max_backoff, multiplier >= 1");
  }
  if (options.default_timeout.count() <= 0) {
    return absl::InvalidArgumentError("default_timeout: must be positive");
  }
  if (options.idle_buffer_bytes < 0) {
    return absl::InvalidArgumentError("idle_buffer_bytes: must not be negative");
  }
  if (options.keepalive_time.count() < 0 || options.keepalive_time.count() > INT_MAX) {
    return absl::InvalidArgumentError("keepalive_time: is 0 to 2^31 - 1 milliseconds");
  }
  const TlsOptions& tls = options.tls;
  if (!tls.enabled && !(tls.ca_file.empty() && tls.cert_file.empty() && tls.key_file.empty() &&
                        tls.server_name.empty())) {
    return absl::InvalidArgumentError("tls: options are given, but enabled is false");
  }
  if (tls.cert_file.empty() != tls.key_file.empty()) {
    return absl::InvalidArgumentError("tls: cert_file and key_file go together");
  }
  if (!options.token.empty() && !options.token_file.empty()) {
    return absl::InvalidArgumentError("token and token_file exclude each other");
  }
  if ((!options.token.empty() || !options.token_file.empty()) && !tls.enabled &&
      !options.allow_insecure_token) {
    return absl::FailedPreconditionError(
        "token: refused without TLS, since it would travel readable; set allow_insecure_token to "
        "send it all the same");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Credentials(const TlsOptions& tls) {
  if (!tls.enabled) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions ssl;
  const std::pair<const std::string&, std::string*> files[] = {
      {tls.ca_file, &ssl.pem_root_certs},
      {tls.cert_file, &ssl.pem_cert_chain},
      {tls.key_file, &ssl.pem_private_key},
  };
  for (const auto& [path, content] : files) {
    if (path.empty()) continue;
    absl::StatusOr<std::string> read = ReadFile("tls", path);
    if (!read.ok()) return read.status();
    *content = *std::move(read);
  }
  return grpc::SslCredentials(ssl);
}

grpc::ChannelArguments Arguments(const ClientOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetUserAgentPrefix("attend-client-cpp");
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetMaxSendMessageSize(-1);
  // Channels with equal arguments share one connection unless told not to.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // gRPC's own retries keep a copy of the message and give up past 256 KiB.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kFirstReconnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kLongestReconnectMs);
  if (options.keepalive_time.count() > 0) {
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(options.keepalive_time.count()));
    arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  }
  if (!options.tls.server_name.empty()) {
    arguments.SetSslTargetNameOverride(options.tls.server_name);
  }
  return arguments;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChannelPool>> ChannelPool::Create(const std::string& target,
                                                                 const ClientOptions& options) {
  if (absl::Status status = CheckOptions(target, options); !status.ok()) return status;
  absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> credentials = Credentials(options.tls);
  if (!credentials.ok()) return credentials.status();
  std::unique_ptr<ChannelPool> pool(new ChannelPool);
  pool->token_ = options.token;
  pool->token_file_ = options.token_file;
  if (!options.token_file.empty()) {
    if (auto token = ReadFile("token_file", options.token_file); !token.ok()) {
      return token.status();
    }
  }
  const grpc::ChannelArguments arguments = Arguments(options);
  for (int i = 0; i < options.channels; ++i) {
    pool->slots_.push_back(
        std::make_unique<Slot>(grpc::CreateCustomChannel(target, *credentials, arguments)));
  }
  return pool;
}

ChannelPool::Slot& ChannelPool::Pick() {
  const size_t count = slots_.size();
  const size_t first = turn_.fetch_add(1, std::memory_order_relaxed) % count;
  size_t best = first;
  int fewest = slots_[first]->in_flight.load(std::memory_order_relaxed);
  for (size_t i = 1; i < count && fewest > 0; ++i) {
    const size_t candidate = (first + i) % count;
    const int in_flight = slots_[candidate]->in_flight.load(std::memory_order_relaxed);
    if (in_flight < fewest) {
      best = candidate;
      fewest = in_flight;
    }
  }
  return *slots_[best];
}

absl::Status ChannelPool::Prepare(grpc::ClientContext* context) const {
  std::string token = token_;
  if (!token_file_.empty()) {
    absl::StatusOr<std::string> read = ReadFile("token_file", token_file_);
    if (!read.ok()) return absl::UnauthenticatedError(read.status().message());
    token = std::string(absl::StripAsciiWhitespace(*read));
  }
  if (!token.empty()) context->AddMetadata("authorization", absl::StrCat("Bearer ", token));
  return absl::OkStatus();
}

}  // namespace attend::client
