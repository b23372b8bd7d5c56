// Memory that tells when somebody strays: poisoned inside and around, or ending at a page that
// nobody may touch.

#ifndef ATTEND_TESTS_TESTING_GUARDED_BUFFER_H_
#define ATTEND_TESTS_TESTING_GUARDED_BUFFER_H_

#include <cstddef>
#include <cstdint>

namespace attend::testing {

// All bits set: NaN as fp32, fp16 and bf16 alike.
inline constexpr uint8_t kPoisonByte = 0xff;

class GuardedBuffer {
 public:
  enum class Placement {
    kAligned,  // starts at a multiple of 256 bytes
    kFlush,    // ends right before an inaccessible page: reading past the end faults at once
  };

  // Filled with kPoisonByte.
  GuardedBuffer(size_t bytes, Placement placement);
  ~GuardedBuffer();
  GuardedBuffer(GuardedBuffer&& other) noexcept;
  GuardedBuffer& operator=(GuardedBuffer&&) = delete;

  void* data() const { return data_; }
  size_t size() const { return bytes_; }

  void Poison();
  // Whether the zones before and behind the data still hold the poison.
  bool GuardsIntact() const;

 private:
  uint8_t* map_ = nullptr;
  size_t map_bytes_ = 0;
  size_t open_bytes_ = 0;  // readable part of the map
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace attend::testing

#endif  // ATTEND_TESTS_TESTING_GUARDED_BUFFER_H_
