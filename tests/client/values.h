// Random q, k, v of one request, and the answer that the scripted server makes of them.

#ifndef ATTEND_TESTS_CLIENT_VALUES_H_
#define ATTEND_TESTS_CLIENT_VALUES_H_

#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "attend/request.h"
#include "tests/testing/random.h"

namespace attend::client {

// Any bit pattern is as good as another: nobody computes with them.
class Values {
 public:
  Values(int64_t rows, int64_t heads, int64_t dim) : shape_{rows, heads, dim} {
    static std::atomic<uint64_t> made = 0;  // no two alike
    testing::Random random(testing::MixSeed(testing::TestSeed(), "values") + made++);
    for (auto* tensor : {&q_, &k_, &v_}) {
      tensor->resize(static_cast<size_t>(rows * heads * dim));
      for (uint16_t& element : *tensor) element = static_cast<uint16_t>(random.Next());
    }
  }

  AttendInputs inputs() const {
    return {TensorRef::Fp16(q_, shape_), TensorRef::Fp16(k_, shape_), TensorRef::Fp16(v_, shape_)};
  }
  size_t bytes() const { return q_.size() * 2; }

  // Whether `o` is q with every bit inverted.
  bool IsEcho(const Tensor& o) const {
    const std::span<const uint16_t> got = o.values<uint16_t>();
    if (got.size() != q_.size()) return false;
    for (size_t i = 0; i < q_.size(); ++i) {
      if (got[i] != static_cast<uint16_t>(~q_[i])) return false;
    }
    return true;
  }

 private:
  const Shape shape_;
  std::vector<uint16_t> q_, k_, v_;
};

}  // namespace attend::client

#endif  // ATTEND_TESTS_CLIENT_VALUES_H_
