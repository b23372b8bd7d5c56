#include "tests/testing/half_sent_call.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace attend::testing {
namespace {

constexpr uint16_t kInitialWindow = 4;  // a setting
constexpr uint32_t kStream = 1;
constexpr int64_t kFrameBytes = 16384;

}  // namespace

HalfSentCall::HalfSentCall(int port, int64_t message_bytes)
    : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), unsent_(message_bytes - 1) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) ended_ = true;
  const std::string prefix = BigEndian(0, 1) + BigEndian(static_cast<uint64_t>(message_bytes), 4);
  out_ = Http2Hello() + Frame(kFrameHeaders, kEndHeaders, kStream, CallHeaders()) +
         Frame(kFrameData, 0, kStream, prefix);
  connection_window_ -= static_cast<int64_t>(prefix.size());
  stream_window_ -= static_cast<int64_t>(prefix.size());
}

HalfSentCall::~HalfSentCall() { close(fd_); }

bool HalfSentCall::Advance() {
  if (ended_) return false;
  ReadFrames();
  if (out_.empty()) {
    const int64_t bytes = std::min({unsent_, connection_window_, stream_window_, kFrameBytes});
    if (bytes > 0) {
      out_ += Frame(kFrameData, 0, kStream, std::string(static_cast<size_t>(bytes), '\0'));
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
  size_t whole = 0;
  ForEachFrame(in_, [&](const FrameView& frame) {
    OnFrame(frame);
    whole = static_cast<size_t>(frame.payload.data() + frame.payload.size() - in_.data());
  });
  in_.erase(0, whole);
}

void HalfSentCall::OnFrame(const FrameView& frame) {
  const std::string_view payload = frame.payload;
  switch (frame.type) {
    case kFrameSettings:
      if ((frame.flags & kAck) != 0) return;
      for (size_t at = 0; at + 6 <= payload.size(); at += 6) {
        if (ReadBigEndian(payload.substr(at, 2)) != kInitialWindow) continue;
        const int64_t window = ReadBigEndian(payload.substr(at + 2, 4));
        stream_window_ += window - initial_window_;
        initial_window_ = window;
      }
      out_ += Frame(kFrameSettings, kAck, 0, "");
      return;
    case kFramePing:
      if ((frame.flags & kAck) == 0) out_ += Frame(kFramePing, kAck, 0, payload);
      return;
    case kFrameWindowUpdate:
      (frame.stream == 0 ? connection_window_ : stream_window_) +=
          ReadBigEndian(payload.substr(0, 4));
      return;
    case kFrameReset:
    case kFrameGoAway:
      ended_ = true;
      return;
    default:
      return;
  }
}

}  // namespace attend::testing
