#include "tests/testing/guarded_buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace attend::testing {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kGuard = 256;

}  // namespace

GuardedBuffer::GuardedBuffer(size_t bytes, Placement placement) : bytes_(bytes) {
  open_bytes_ = (bytes + 2 * kGuard + kPage - 1) / kPage * kPage;
  map_bytes_ = open_bytes_ + kPage;
  void* map = mmap(nullptr, map_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) std::abort();  // a test machine without memory
  map_ = static_cast<uint8_t*>(map);
  if (mprotect(map_ + open_bytes_, kPage, PROT_NONE) != 0) std::abort();
  data_ = placement == Placement::kFlush ? map_ + open_bytes_ - bytes : map_ + kGuard;
  std::memset(map_, kPoisonByte, open_bytes_);
}

GuardedBuffer::~GuardedBuffer() {
  if (map_ != nullptr) munmap(map_, map_bytes_);
}

GuardedBuffer::GuardedBuffer(GuardedBuffer&& other) noexcept
    : map_(std::exchange(other.map_, nullptr)),
      map_bytes_(other.map_bytes_),
      open_bytes_(other.open_bytes_),
      data_(other.data_),
      bytes_(other.bytes_) {}

void GuardedBuffer::Poison() { std::memset(data_, kPoisonByte, bytes_); }

bool GuardedBuffer::GuardsIntact() const {
  const auto intact = [](uint8_t byte) { return byte == kPoisonByte; };
  return std::all_of(map_, data_, intact) &&
         std::all_of(data_ + bytes_, map_ + open_bytes_, intact);
}

}  // namespace attend::testing
