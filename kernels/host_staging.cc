#include "kernels/host_staging.h"

#include <cstdlib>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/errors.h"

namespace attend {
namespace {

class HostStaging final : public Staging {
 public:
  HostStaging(std::byte* data, size_t size) : data_(data), size_(size) {}
  ~HostStaging() override { std::free(data_); }
  HostStaging(const HostStaging&) = delete;
  HostStaging& operator=(const HostStaging&) = delete;

  std::byte* data() const override { return data_; }
  size_t size() const override { return size_; }
  MemoryKind memory_kind() const override { return MemoryKind::kHost; }

 private:
  std::byte* const data_;
  const size_t size_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Staging>> MakeHostStaging(size_t bytes) {
  if (bytes <= std::numeric_limits<size_t>::max() - kHostStagingAlignment) {
    // aligned_alloc wants a multiple of the alignment, and more than nothing.
    const size_t pages = bytes / kHostStagingAlignment + 1;
    void* data = std::aligned_alloc(kHostStagingAlignment, pages * kHostStagingAlignment);
    if (data != nullptr) {
      return std::make_unique<HostStaging>(static_cast<std::byte*>(data), bytes);
    }
  }
  return absl::ResourceExhaustedError(absl::StrCat("the host has no ", bytes, " bytes of memory"));
}

absl::Status CheckOnHost(const AttentionTask& task, std::string_view backend_name) {
  const std::pair<const char*, MemoryKind> places[] = {
      {"q", task.q.memory},
      {"k", task.k.memory},
      {"v", task.v.memory},
      {"o", task.o.memory},
      {"lse", task.lse.memory},
      {"bias", task.bias.memory},
      {"alibi_slopes", task.alibi_slopes.memory},
      {"sinks", task.sinks.memory},
  };
  for (const auto& [field, memory] : places) {
    if (memory == MemoryKind::kDevice) {
      return UnsupportedOption(
          field, absl::StrCat("the ", absl::string_view(backend_name.data(), backend_name.size()),
                              " backend does not read device memory"));
    }
  }
  return absl::OkStatus();
}

}  // namespace attend
