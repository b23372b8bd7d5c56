#include "cli/schedule.h"

#include <cmath>

namespace attend::cli {

std::chrono::nanoseconds Schedule::Next() {
  if (arrivals_ == Arrivals::kConstant) {
    seconds_ = static_cast<double>(sent_) / rate_;
  } else if (sent_ > 0) {
    seconds_ += std::exponential_distribution<double>(rate_)(generator_);
  }
  ++sent_;
  return std::chrono::nanoseconds(std::llround(seconds_ * 1e9));
}

}  // namespace attend::cli
