#include "tests/testing/raw_connection.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <utility>

namespace attend::testing {
namespace {

constexpr int kPatienceSeconds = 30;
constexpr size_t kFrameHeaderBytes = 9;

// The length of an HPACK string, with a 7-bit prefix.
std::string HpackLength(size_t length) {
  constexpr size_t kPrefix = 127;
  if (length < kPrefix) return std::string(1, static_cast<char>(length));
  std::string out(1, static_cast<char>(kPrefix));
  for (length -= kPrefix; length >= 128; length /= 128) {
    out += static_cast<char>(length % 128 + 128);
  }
  return out + static_cast<char>(length);
}

}  // namespace

RawConnection::RawConnection(int port) : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    close(std::exchange(fd_, -1));
  }
}

RawConnection::~RawConnection() {
  if (fd_ >= 0) close(fd_);
}

RawConnection::RawConnection(RawConnection&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      closed_(other.closed_),
      received_(std::move(other.received_)) {}

bool RawConnection::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    // The other side's words are read meanwhile, so that neither waits for the other; and its end
    // is seen, since who has ended need not tell that it takes no more.
    if (Closed()) return false;
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
    } else if (errno == EAGAIN) {
      pollfd one = {fd_, POLLIN | POLLOUT, 0};
      if (poll(&one, 1, kPatienceSeconds * 1000) == 0) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

const std::string& RawConnection::Received() {
  std::array<char, 65536> buffer;
  while (!closed_) {
    const ssize_t got = recv(fd_, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) break;
    if (got <= 0) closed_ = true;
    if (got > 0) received_.append(buffer.data(), static_cast<size_t>(got));
  }
  return received_;
}

bool RawConnection::Closed() {
  Received();
  return closed_;
}

bool RawConnection::Reset() const {
  pollfd one = {fd_, 0, 0};
  return poll(&one, 1, 0) == 1 && (one.revents & POLLHUP) != 0;
}

bool RawConnection::ReadUntil(const std::function<bool(const std::string&)>& done) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(kPatienceSeconds);
  while (!done(Received()) && !closed_) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    pollfd one = {fd_, POLLIN, 0};
    poll(&one, 1, 100);
  }
  return true;
}

bool RawConnection::WaitForEnd() {
  return ReadUntil([](const std::string&) { return false; });
}

std::string BigEndian(uint64_t value, int bytes) {
  std::string out;
  for (int i = bytes - 1; i >= 0; --i) out += static_cast<char>(value >> (8 * i));
  return out;
}

uint32_t ReadBigEndian(std::string_view bytes) {
  uint32_t value = 0;
  for (const char c : bytes) value = value << 8 | static_cast<uint8_t>(c);
  return value;
}

std::string Frame(FrameType type, uint8_t flags, uint32_t stream, std::string_view payload) {
  std::string out = BigEndian(static_cast<uint32_t>(payload.size()), 3);
  out += static_cast<char>(type);
  out += static_cast<char>(flags);
  out += BigEndian(stream, 4);
  return out.append(payload);
}

std::string Http2Hello() { return std::string(kHttp2Preface) + Frame(kFrameSettings, 0, 0, ""); }

std::string LiteralHeader(std::string_view name, std::string_view value) {
  std::string out(1, '\0');
  out += HpackLength(name.size());
  out += name;
  out += HpackLength(value.size());
  return out.append(value);
}

std::string CallHeaders() {
  return LiteralHeader(":method", "POST") + LiteralHeader(":scheme", "http") +
         LiteralHeader(":path", "/attend.v1.AttentionService/Attend") +
         LiteralHeader(":authority", "localhost") +
         LiteralHeader("content-type", "application/grpc") + LiteralHeader("te", "trailers");
}

void ForEachFrame(std::string_view bytes, const std::function<void(const FrameView&)>& see) {
  while (bytes.size() >= kFrameHeaderBytes) {
    const size_t length = ReadBigEndian(bytes.substr(0, 3));
    if (bytes.size() < kFrameHeaderBytes + length) return;
    see({static_cast<uint8_t>(bytes[3]), static_cast<uint8_t>(bytes[4]),
         ReadBigEndian(bytes.substr(5, 4)), bytes.substr(kFrameHeaderBytes, length)});
    bytes.remove_prefix(kFrameHeaderBytes + length);
  }
}

std::optional<GoAway> GoAwayIn(std::string_view bytes) {
  std::optional<GoAway> found;
  ForEachFrame(bytes, [&](const FrameView& frame) {
    if (frame.type != kFrameGoAway || frame.payload.size() < 8) return;
    found = GoAway{ReadBigEndian(frame.payload.substr(4, 4)), std::string(frame.payload.substr(8))};
  });
  return found;
}

}  // namespace attend::testing
