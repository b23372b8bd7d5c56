#include "server/rpc/connection_table.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace attend {

std::optional<ConnectionLimit> ConnectionTable::Admit(const std::string& client) {
  if (most_ > 0 && open_ >= most_) return ConnectionLimit::kTotal;
  int64_t& own = by_client_[client];
  // `most_per_address_` is at least 1 here, so a refused client has an entry already.
  if (most_per_address_ > 0 && own >= most_per_address_) return ConnectionLimit::kAddress;
  ++own;
  ++open_;
  return std::nullopt;
}

void ConnectionTable::Release(const std::string& client) {
  const auto found = by_client_.find(client);
  if (found == by_client_.end()) return;
  --open_;
  if (--found->second == 0) by_client_.erase(found);
}

std::string PeerName(const sockaddr_storage& peer) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (peer.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(peer);
    inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
    return absl::StrCat("ipv4:", text.data(), ":", ntohs(v4.sin_port));
  }
  if (peer.ss_family != AF_INET6) return "unknown";
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(peer);
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], text.data(), text.size());
    return absl::StrCat("ipv4:", text.data(), ":", ntohs(v6.sin6_port));
  }
  inet_ntop(AF_INET6, &v6.sin6_addr, text.data(), text.size());
  return absl::StrCat("ipv6:%5B", text.data(), "%5D:", ntohs(v6.sin6_port));
}

std::string ConnectionClient(const sockaddr_storage& peer) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (peer.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(peer);
    inet_ntop(AF_INET, &v4.sin_addr, text.data(), text.size());
    return text.data();
  }
  if (peer.ss_family != AF_INET6) return "unknown";
  in6_addr address = reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    inet_ntop(AF_INET, &address.s6_addr[12], text.data(), text.size());
    return text.data();
  }
  if (IN6_IS_ADDR_LOOPBACK(&address)) return "::1";
  std::memset(&address.s6_addr[8], 0, 8);
  inet_ntop(AF_INET6, &address, text.data(), text.size());
  return absl::StrCat(text.data(), "/64");
}

}  // namespace attend
