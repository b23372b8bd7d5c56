// What must hold for any bytes that a client may send as a request.

#ifndef ATTEND_TESTS_FUZZ_REQUEST_CHECK_H_
#define ATTEND_TESTS_FUZZ_REQUEST_CHECK_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace attend::testing {

// Cuts `data` into slices, reads it as an AttendRequest or, by its first byte, an
// AttendStreamRequest, and compares with the generated parser: the same messages are accepted, with
// the same fields and the same tensor bytes, and what decodes stays within its bounds. Returns what
// is wrong, or an empty string.
std::string CheckRequestBytes(const uint8_t* data, size_t size);

}  // namespace attend::testing

#endif  // ATTEND_TESTS_FUZZ_REQUEST_CHECK_H_
