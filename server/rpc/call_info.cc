#include "server/rpc/call_info.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/errors.h"
#include "server/rpc/request_codec.h"

namespace attend {

std::string HostOf(std::string_view peer) {
  const size_t colon = peer.find(':');
  if (colon == std::string_view::npos) return std::string(peer);
  const std::string_view scheme = peer.substr(0, colon);
  if (scheme != "ipv4" && scheme != "ipv6") return "local";
  const std::string_view rest = peer.substr(colon + 1);
  return std::string(rest.substr(0, rest.rfind(':')));
}

std::string ClientOf(const grpc::CallbackServerContext& context) {
  const std::shared_ptr<const grpc::AuthContext> auth = context.auth_context();
  if (auth != nullptr && auth->IsPeerAuthenticated()) {
    const std::vector<grpc::string_ref> names = auth->GetPeerIdentity();
    if (!names.empty()) {
      constexpr size_t kMostBytes = 256;
      return "cert:" + std::string(names[0].data(), std::min(names[0].size(), kMostBytes));
    }
  }
  return HostOf(context.peer());
}

std::optional<Clock::time_point> DeadlineOf(const grpc::CallbackServerContext& context) {
  const std::chrono::system_clock::time_point deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return std::nullopt;
  const auto left = deadline - std::chrono::system_clock::now();
  // A deadline that the steady clock cannot name is none.
  if (left > std::chrono::hours(24 * 365)) return std::nullopt;
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(left);
}

bool EndsByDeadline(const std::optional<Clock::time_point>& deadline) {
  constexpr std::chrono::milliseconds kMargin{20};  // gRPC's timer was seen 2 ms early
  return deadline.has_value() && *deadline - Clock::now() < kMargin;
}

std::optional<std::string> HeaderOf(const grpc::CallbackServerContext& context,
                                    const std::string& name) {
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(name);
  if (found == metadata.end()) return std::nullopt;
  return std::string(found->second.data(), found->second.size());
}

bool IsRetry(const grpc::CallbackServerContext& context) {
  const std::optional<std::string> attempts = HeaderOf(context, "grpc-previous-rpc-attempts");
  return attempts.has_value() && *attempts != "0";
}

std::string ResolveRequestId(const std::string& field, const std::optional<std::string>& header,
                             absl::Status* status) {
  *status = absl::OkStatus();
  if (!field.empty()) {
    *status = ValidateRequestId(field);
    if (status->ok()) return field;
  } else if (header.has_value() && !header->empty()) {
    *status = ValidateRequestId(*header);
    if (status->ok()) return *header;
    *status = WithField(*status, kRequestIdHeader);
  }
  return MakeRequestId();
}

std::string MakeRequestId() {
  // A counter from a random start through a bijection (the finalizer of SplitMix64): all different.
  static std::atomic<uint64_t> counter = [] {
    std::random_device device;
    return (uint64_t{device()} << 32) | device();
  }();
  uint64_t x = counter.fetch_add(0x9e3779b97f4a7c15, std::memory_order_relaxed);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  x ^= x >> 31;
  return absl::StrFormat("%016x", x);
}

}  // namespace attend
