#include "server/rpc/tcp_listener.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace attend {
namespace {

constexpr int kBacklog = 1024;
// How long to wait when the process has no descriptor left.
constexpr int kPauseMilliseconds = 100;
// How often connections are looked at, while there are any.
constexpr std::chrono::milliseconds kLookInterval{100};

std::string ErrorText(int error) { return std::generic_category().message(error); }

absl::Status CannotListen(const std::string& listen, const std::string& why) {
  return absl::UnavailableError(absl::StrCat("cannot listen on ", listen, " for gRPC: ", why));
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

absl::StatusOr<Addresses> Resolve(const std::string& listen) {
  const size_t colon = listen.rfind(':');
  std::string host = listen.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  const std::string port = colon == std::string::npos ? "" : listen.substr(colon + 1);
  const bool digits = !port.empty() && port.size() <= 5 &&
                      port.find_first_not_of("0123456789") == std::string::npos;
  if (!digits || std::stoi(port) > 65535 || (!bracketed && host.find(':') != std::string::npos)) {
    return CannotListen(listen, "not host:port, [IPv6]:port or unix:/path");
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.empty() ? nullptr : host.c_str(), port.c_str(), &hints, &list);
  if (error != 0) return CannotListen(listen, gai_strerror(error));
  return Addresses(list);
}

void SetOption(int fd, int level, int name, int value) {
  setsockopt(fd, level, name, &value, sizeof value);
}

int PortOf(const sockaddr_storage& address) {
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

// A listening socket, or errno.
std::pair<UniqueFd, int> Listen(const addrinfo& one, bool only_v6, int port) {
  UniqueFd fd(socket(one.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd.get() < 0) return {std::move(fd), errno};
  // Connections inherit them. Without the first, a restart finds its old port in TIME_WAIT; two
  // servers still cannot share a port.
  SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  SetOption(fd.get(), IPPROTO_TCP, TCP_NODELAY, 1);
  if (one.ai_family == AF_INET6) SetOption(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, only_v6 ? 1 : 0);
  sockaddr_storage address{};
  std::copy_n(reinterpret_cast<const char*>(one.ai_addr), one.ai_addrlen,
              reinterpret_cast<char*>(&address));
  if (one.ai_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(address).sin6_port = htons(static_cast<uint16_t>(port));
  } else {
    reinterpret_cast<sockaddr_in&>(address).sin_port = htons(static_cast<uint16_t>(port));
  }
  if (bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), one.ai_addrlen) != 0 ||
      listen(fd.get(), kBacklog) != 0) {
    return {UniqueFd(), errno};
  }
  return {std::move(fd), 0};
}

void Watch(int epoll, int operation, int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.fd = fd;
  epoll_ctl(epoll, operation, fd, &event);
}

}  // namespace

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (fd_ >= 0) close(fd_);
  fd_ = other.release();
  return *this;
}
UniqueFd::~UniqueFd() {
  if (fd_ >= 0) close(fd_);
}
int UniqueFd::release() { return std::exchange(fd_, -1); }

absl::StatusOr<std::unique_ptr<TcpListener>> TcpListener::Open(const std::string& listen) {
  absl::StatusOr<Addresses> addresses = Resolve(listen);
  if (!addresses.ok()) return addresses.status();
  std::unique_ptr<TcpListener> listener(new TcpListener());
  const bool several = (*addresses)->ai_next != nullptr;
  int last_error = 0;
  for (const addrinfo* one = addresses->get(); one != nullptr; one = one->ai_next) {
    sockaddr_storage wanted{};
    std::copy_n(reinterpret_cast<const char*>(one->ai_addr), one->ai_addrlen,
                reinterpret_cast<char*>(&wanted));
    auto [fd, error] =
        Listen(*one, several, listener->port_ > 0 ? listener->port_ : PortOf(wanted));
    if (fd.get() < 0) {
      last_error = error;
      // "localhost" also names ::1 where there is no IPv6.
      if (error == EADDRNOTAVAIL || error == EAFNOSUPPORT) continue;
      return CannotListen(listen, ErrorText(error));
    }
    sockaddr_storage bound{};
    socklen_t size = sizeof bound;
    getsockname(fd.get(), reinterpret_cast<sockaddr*>(&bound), &size);
    listener->port_ = PortOf(bound);
    listener->sockets_.push_back(std::move(fd));
  }
  if (listener->sockets_.empty()) return CannotListen(listen, ErrorText(last_error));
  listener->epoll_ = UniqueFd(epoll_create1(EPOLL_CLOEXEC));
  listener->wake_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (listener->epoll_.get() < 0 || listener->wake_.get() < 0) {
    return CannotListen(listen, ErrorText(errno));
  }
  return listener;
}

TcpListener::~TcpListener() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    while (write(wake_.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
    thread_.join();
  }
  for (const auto& [held, connection] : connections_) close(held);
}

void TcpListener::Start(const ConnectionTable& limits, int64_t most_unfinished_bytes,
                        RpcObserver* observer, ConnectionLedger* ledger, Handler handler) {
  table_ = limits;
  most_unfinished_bytes_ = most_unfinished_bytes;
  observer_ = observer;
  ledger_ = ledger;
  handler_ = std::move(handler);
  Watch(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), EPOLLIN);
  for (const UniqueFd& fd : sockets_) Watch(epoll_.get(), EPOLL_CTL_ADD, fd.get(), EPOLLIN);
  thread_ = std::thread([this] { Run(); });
}

void TcpListener::Run() {
  std::array<epoll_event, 64> events;
  while (true) {
    const int timeout = !armed_                ? kPauseMilliseconds
                        : connections_.empty() ? -1
                                               : static_cast<int>(kLookInterval.count());
    const int count =
        epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout);
    if (count == 0 && !armed_) Arm(true);
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<size_t>(i)].data.fd;
      if (fd == wake_.get()) return;
      if (connections_.contains(fd)) {
        Ended(fd);
      } else {
        Take(fd);
      }
    }
    if (const auto now = std::chrono::steady_clock::now(); now >= next_look_) {
      next_look_ = now + kLookInterval;
      EndHoarders();
    }
  }
}

void TcpListener::Take(int listener) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  UniqueFd fd(
      accept4(listener, reinterpret_cast<sockaddr*>(&peer), &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd.get() < 0) {
    // Without descriptors or memory the connection stays in the kernel's queue: look again later.
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) Arm(false);
    return;  // or it has gone again
  }
  const std::string client = ConnectionClient(peer);
  if (const std::optional<ConnectionLimit> limit = table_.Admit(client)) {
    observer_->OnConnectionRefused(*limit, client);
    return;
  }
  const int held = fcntl(fd.get(), F_DUPFD_CLOEXEC, 0);
  if (held < 0) {
    table_.Release(client);
    observer_->OnConnectionRefused(ConnectionLimit::kFiles, client);
    Arm(false);
    return;
  }
  connections_.emplace(held, Connection{client, PeerName(peer)});
  observer_->OnConnectionStart();
  // No event is asked for: EPOLLHUP, both directions shut, is always told.
  Watch(epoll_.get(), EPOLL_CTL_ADD, held, 0);
  handler_(listener, fd.release());
}

void TcpListener::Ended(int held) {
  const auto found = connections_.find(held);
  table_.Release(found->second.client);
  connections_.erase(found);
  // Closing is not enough: as long as gRPC has its descriptor, epoll would go on telling the end by
  // this number, which the next connection may have got.
  Watch(epoll_.get(), EPOLL_CTL_DEL, held, 0);
  close(held);
  observer_->OnConnectionEnd();
  if (!armed_) Arm(true);
}

void TcpListener::EndHoarders() {
  const absl::flat_hash_set<std::string> delivered = ledger_->Take();
  uint64_t all = 0, most = 0;
  std::pair<const int, Connection>* worst = nullptr;
  for (auto& entry : connections_) {
    Connection& connection = entry.second;
    tcp_info info{};
    socklen_t size = sizeof info;
    if (connection.ended || getsockopt(entry.first, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) {
      continue;
    }
    if (delivered.contains(connection.peer)) connection.received_before = info.tcpi_bytes_received;
    const uint64_t unfinished = info.tcpi_bytes_received - connection.received_before;
    all += unfinished;
    if (unfinished <= most) continue;
    most = unfinished;
    worst = &entry;
  }
  if (worst == nullptr || all <= static_cast<uint64_t>(most_unfinished_bytes_)) return;
  worst->second.ended = true;
  observer_->OnConnectionRefused(ConnectionLimit::kMemory, worst->second.client);
  // What it has sent and not been read is dropped, and it is told so when gRPC closes: after a mere
  // shutdown a client that fills its window waits for room until the kernel forgets the socket.
  const linger drop{1, 0};
  setsockopt(worst->first, SOL_SOCKET, SO_LINGER, &drop, sizeof drop);
  shutdown(worst->first, SHUT_RDWR);  // gRPC notices, and so do we
}

void TcpListener::Arm(bool on) {
  armed_ = on;
  const uint32_t events = on ? uint32_t{EPOLLIN} : 0;
  for (const UniqueFd& fd : sockets_) Watch(epoll_.get(), EPOLL_CTL_MOD, fd.get(), events);
}

}  // namespace attend
