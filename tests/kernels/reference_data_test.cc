// The oracle against a second formulation of its own: NumPy in float64, stored under
// tests/data/reference (make_cases.py there says how).

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "client/cli/npy.h"
#include "kernels/reference/number_formats.h"
#include "kernels/reference/reference.h"

namespace attend::reference {
namespace {

// The numbers of a flat float64 file, taken from the front.
class Stream {
 public:
  explicit Stream(const std::string& name) {
    absl::StatusOr<cli::NpyArray> array = cli::ReadNpy(ATTEND_TEST_DATA "/reference/" + name);
    EXPECT_EQ(array.status(), absl::OkStatus());
    if (!array.ok()) return;
    EXPECT_EQ(array->type, cli::NpyType::kF64);
    values_.resize(array->data.size() / sizeof(double));
    std::memcpy(values_.data(), array->data.data(), array->data.size());
  }

  double Next() {
    if (at_ == values_.size()) {
      ADD_FAILURE() << "the file is too short";
      return 0;
    }
    return values_[at_++];
  }
  bool at_end() const { return at_ == values_.size(); }

 private:
  std::vector<double> values_;
  size_t at_ = 0;
};

using Fields = std::map<std::string, std::string>;

Fields ParseLine(const std::string& line) {
  Fields fields;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    const size_t equals = word.find('=');
    fields[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return fields;
}

int64_t Integer(const Fields& fields, const std::string& key, int64_t otherwise = 0) {
  const auto found = fields.find(key);
  return found == fields.end() ? otherwise : std::stoll(found->second);
}

TEST(ReferenceData, AgreesWithNumPy) {
  std::ifstream lines(ATTEND_TEST_DATA "/reference/cases.txt");
  ASSERT_TRUE(lines.good());
  Stream inputs("inputs.npy"), outputs("outputs.npy");
  int cases = 0;
  for (std::string line; std::getline(lines, line); ++cases) {
    SCOPED_TRACE(line);
    const Fields fields = ParseLine(line);
    const int64_t sq = Integer(fields, "sq"), sk = Integer(fields, "sk");
    const int64_t hq = Integer(fields, "hq"), hk = Integer(fields, "hk");
    const int64_t d = Integer(fields, "d"), dv = Integer(fields, "dv");
    const DType dtype = fields.count("half") != 0 ? DType::kF16 : DType::kF32;

    std::vector<std::vector<float>> memories;
    memories.reserve(8);
    const auto read = [&](int64_t count, DType as) {
      auto& memory = memories.emplace_back(static_cast<size_t>(count + 1));
      for (int64_t i = 0; i < count; ++i) StoreElement(memory.data(), as, i, inputs.Next());
      return memory.data();
    };
    AttentionTask task;
    task.q = TensorView::Contiguous(read(sq * hq * d, dtype), dtype, MemoryKind::kHost, sq, hq, d);
    task.k = TensorView::Contiguous(read(sk * hk * d, dtype), dtype, MemoryKind::kHost, sk, hk, d);
    task.v =
        TensorView::Contiguous(read(sk * hk * dv, dtype), dtype, MemoryKind::kHost, sk, hk, dv);
    task.o = TensorView::Contiguous(nullptr, dtype, MemoryKind::kHost, sq, hq, dv);
    task.seqlen_q = sq;
    task.seqlen_k = sk;
    task.softmax_scale = fields.count("scale") != 0 ? std::stof(fields.at("scale"))
                                                    : 1 / std::sqrt(static_cast<float>(d));
    if (fields.count("softcap") != 0) task.softcap = std::stof(fields.at("softcap"));
    task.mask.causal = Integer(fields, "causal") != 0;
    if (fields.count("left") != 0) task.mask.window_left = Integer(fields, "left");
    if (fields.count("right") != 0) task.mask.window_right = Integer(fields, "right");
    if (fields.count("bias") != 0) {
      task.bias.data = read(hq * sq * sk, DType::kF32);
      task.bias.row_stride = sk;
      task.bias.head_stride = sq * sk;
    }
    if (fields.count("alibi") != 0) task.alibi_slopes.data = read(hq, DType::kF32);
    if (fields.count("sinks") != 0) task.sinks.data = read(hq, DType::kF32);
    ASSERT_EQ(Validate(task), absl::OkStatus());

    const Answer answer = ComputeAll(task);
    for (int64_t i = 0; i < sq; ++i) {
      for (int64_t h = 0; h < hq; ++h) {
        for (int64_t c = 0; c < dv; ++c) {
          const double want = outputs.Next();
          const double got = answer.o[static_cast<size_t>((h * sq + i) * dv + c)];
          ASSERT_NEAR(got, want, 1e-13 * (1 + std::fabs(want))) << i << " " << h << " " << c;
        }
      }
    }
    for (int64_t h = 0; h < hq; ++h) {
      for (int64_t i = 0; i < sq; ++i) {
        const double want = outputs.Next();
        const double got = answer.lse[static_cast<size_t>(h * sq + i)];
        if (std::isinf(want)) {
          ASSERT_EQ(got, want) << h << " " << i;
        } else {
          ASSERT_NEAR(got, want, 1e-13 * (1 + std::fabs(want))) << h << " " << i;
        }
      }
    }
  }
  EXPECT_EQ(cases, 20);
  EXPECT_TRUE(inputs.at_end());
  EXPECT_TRUE(outputs.at_end());
}

}  // namespace
}  // namespace attend::reference
