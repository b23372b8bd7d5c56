// A TCP connection without gRPC, and the few HTTP/2 frames that its abuse takes.

#ifndef ATTEND_TESTS_TESTING_RAW_CONNECTION_H_
#define ATTEND_TESTS_TESTING_RAW_CONNECTION_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace attend::testing {

class RawConnection {
 public:
  // To 127.0.0.1.
  explicit RawConnection(int port);
  ~RawConnection();
  RawConnection(RawConnection&& other) noexcept;
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;

  bool connected() const { return fd_ >= 0; }
  // False when the other side has closed, or takes nothing for half a minute.
  bool Send(std::string_view bytes);
  // What has come so far, without waiting.
  const std::string& Received();
  // Whether the other side has closed by now; reads what comes before.
  bool Closed();
  // Whether the other side has said that it takes nothing more either.
  bool Reset() const;
  // Reads until `done`, or the end; false when neither comes within half a minute.
  bool ReadUntil(const std::function<bool(const std::string&)>& done);
  bool WaitForEnd();

 private:
  int fd_ = -1;
  bool closed_ = false;
  std::string received_;
};

inline constexpr std::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

enum FrameType : uint8_t {
  kFrameData = 0,
  kFrameHeaders = 1,
  kFrameReset = 3,
  kFrameSettings = 4,
  kFramePing = 6,
  kFrameGoAway = 7,
  kFrameWindowUpdate = 8,
  kFrameContinuation = 9,
};
inline constexpr uint8_t kEndStream = 1;  // of headers and data
inline constexpr uint8_t kAck = 1;        // of settings and pings
inline constexpr uint8_t kEndHeaders = 4;

// Numbers as frames hold them, most significant byte first.
std::string BigEndian(uint64_t value, int bytes);
uint32_t ReadBigEndian(std::string_view bytes);

std::string Frame(FrameType type, uint8_t flags, uint32_t stream, std::string_view payload);
// Preface and an empty SETTINGS frame: a whole handshake without TLS.
std::string Http2Hello();
// A literal header of HPACK that enters no table.
std::string LiteralHeader(std::string_view name, std::string_view value);
// The headers of a call of Attend.
std::string CallHeaders();

struct FrameView {
  uint8_t type = 0, flags = 0;
  uint32_t stream = 0;
  std::string_view payload;
};
// Calls `see` for each whole frame of what a server sent.
void ForEachFrame(std::string_view bytes, const std::function<void(const FrameView&)>& see);
// The error code of the GOAWAY frame in `bytes`, and its text.
struct GoAway {
  uint32_t error = 0;
  std::string text;
};
std::optional<GoAway> GoAwayIn(std::string_view bytes);

}  // namespace attend::testing

#endif  // ATTEND_TESTS_TESTING_RAW_CONNECTION_H_
