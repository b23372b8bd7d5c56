#include "tests/testing/half_sent_call.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace attend::testing {
namespace {

constexpr uint8_t kData = 0, kHeaders = 1, kReset = 3, kSettings = 4, kPing = 6, kGoAway = 7,
                  kWindowUpdate = 8;
constexpr uint8_t kAck = 1, kEndHeaders = 4;
constexpr uint16_t kInitialWindow = 4;
constexpr uint32_t kStream = 1;
constexpr int64_t kFrameBytes = 16384;

std::string BigEndian(uint64_t value, int bytes) {
  std::string text;
  for (int i = bytes - 1; i >= 0; --i) text.push_back(static_cast<char>(value >> (8 * i)));
  return text;
}

uint32_t ReadBigEndian(const std::string& text, size_t at, int bytes) {
  uint32_t value = 0;
  for (int i = 0; i < bytes; ++i) {
    value = value << 8 | static_cast<uint8_t>(text[at + static_cast<size_t>(i)]);
  }
  return value;
}

// A header whose name is at `index` of HPACK's static table, or a new one; neither is compressed.
std::string Header(const std::string& index, const std::string& value) {
  return index + BigEndian(value.size(), 1) + value;
}

std::string RequestHeaders() {
  return std::string("\x83\x86", 2) +  // :method POST, :scheme http
         Header("\x04", "/attend.v1.AttentionService/Attend") + Header("\x01", "localhost") +
         Header("\x0f\x10", "application/grpc") + Header(std::string("\0\x02te", 4), "trailers");
}

}  // namespace

HalfSentCall::HalfSentCall(int port, int64_t message_bytes)
    : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), unsent_(message_bytes - 1) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) ended_ = true;
  out_ = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  Queue(kSettings, 0, 0, "");
  Queue(kHeaders, kEndHeaders, kStream, RequestHeaders());
  const std::string prefix = BigEndian(0, 1) + BigEndian(static_cast<uint64_t>(message_bytes), 4);
  Queue(kData, 0, kStream, prefix);
  connection_window_ -= static_cast<int64_t>(prefix.size());
  stream_window_ -= static_cast<int64_t>(prefix.size());
}

HalfSentCall::~HalfSentCall() { close(fd_); }

void HalfSentCall::Queue(uint8_t type, uint8_t flags, uint32_t stream, const std::string& payload) {
  out_ += BigEndian(payload.size(), 3) + BigEndian(type, 1) + BigEndian(flags, 1) +
          BigEndian(stream, 4) + payload;
}

bool HalfSentCall::Advance() {
  if (ended_) return false;
  ReadFrames();
  if (out_.empty()) {
    const int64_t bytes = std::min({unsent_, connection_window_, stream_window_, kFrameBytes});
    if (bytes > 0) {
      Queue(kData, 0, kStream, std::string(static_cast<size_t>(bytes), '\0'));
      unsent_ -= bytes;
      connection_window_ -= bytes;
      stream_window_ -= bytes;
    }
  }
  const ssize_t sent = send(fd_, out_.data(), out_.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent > 0) out_.erase(0, static_cast<size_t>(sent));
  if (sent < 0 && errno != EAGAIN) ended_ = true;
  return !ended_ && (unsent_ > 0 || !out_.empty());
}

void HalfSentCall::ReadFrames() {
  char buffer[4096];
  ssize_t got;
  while ((got = recv(fd_, buffer, sizeof buffer, MSG_DONTWAIT)) > 0) {
    in_.append(buffer, static_cast<size_t>(got));
  }
  if (got == 0 || errno != EAGAIN) ended_ = true;
  constexpr size_t kHead = 9;
  while (in_.size() >= kHead) {
    const size_t length = ReadBigEndian(in_, 0, 3);
    if (in_.size() < kHead + length) return;
    OnFrame(static_cast<uint8_t>(in_[3]), static_cast<uint8_t>(in_[4]), in_.substr(kHead, length),
            ReadBigEndian(in_, 5, 4));
    in_.erase(0, kHead + length);
  }
}

void HalfSentCall::OnFrame(uint8_t type, uint8_t flags, const std::string& payload,
                           uint32_t stream) {
  switch (type) {
    case kSettings:
      if ((flags & kAck) != 0) return;
      for (size_t at = 0; at + 6 <= payload.size(); at += 6) {
        if (ReadBigEndian(payload, at, 2) != kInitialWindow) continue;
        const int64_t window = ReadBigEndian(payload, at + 2, 4);
        stream_window_ += window - initial_window_;
        initial_window_ = window;
      }
      Queue(kSettings, kAck, 0, "");
      return;
    case kPing:
      if ((flags & kAck) == 0) Queue(kPing, kAck, 0, payload);
      return;
    case kWindowUpdate:
      (stream == 0 ? connection_window_ : stream_window_) += ReadBigEndian(payload, 0, 4);
      return;
    case kReset:
    case kGoAway:
      ended_ = true;
      return;
    default:
      return;
  }
}

}  // namespace attend::testing
