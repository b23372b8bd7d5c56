// A call of Attend whose message never quite arrives: all of it is sent but for the last byte, as
// slow or dishonest clients do. Spoken in HTTP/2 by hand, as no client library stops there.

#ifndef ATTEND_TESTS_TESTING_HALF_SENT_CALL_H_
#define ATTEND_TESTS_TESTING_HALF_SENT_CALL_H_

#include <cstdint>
#include <string>

#include "tests/testing/raw_connection.h"

namespace attend::testing {

// Single-threaded. Closes its connection at the end.
class HalfSentCall {
 public:
  // To 127.0.0.1; `message_bytes` is the length that the call announces.
  HalfSentCall(int port, int64_t message_bytes);
  ~HalfSentCall();
  HalfSentCall(const HalfSentCall&) = delete;
  HalfSentCall& operator=(const HalfSentCall&) = delete;

  // Sends and reads what the server lets it, without waiting. False once nothing is left to send:
  // all but the last byte went out, or the server ended the call.
  bool Advance();

  bool ended_by_server() const { return ended_; }

 private:
  void ReadFrames();
  void OnFrame(const FrameView& frame);

  int fd_;
  bool ended_ = false;
  std::string out_, in_;
  int64_t unsent_;  // of the message, without its last byte
  int64_t connection_window_ = 65535, stream_window_ = 65535, initial_window_ = 65535;
};

}  // namespace attend::testing

#endif  // ATTEND_TESTS_TESTING_HALF_SENT_CALL_H_
