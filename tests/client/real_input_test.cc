// Q, K, V of a real model on real text through every backend of this build, against outputs that
// numpy computed in double precision (tests/data/minilm).

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "cli/compare.h"
#include "cli/npy.h"
#include "kernels/attention.h"
#include "kernels/backend.h"

namespace attend {
namespace {

cli::NpyArray Load(int layer, const std::string& what) {
  const std::string path =
      std::string(ATTEND_TEST_DATA) + "/minilm/layer" + std::to_string(layer) + "_" + what + ".npy";
  absl::StatusOr<cli::NpyArray> array = cli::ReadNpy(path);
  EXPECT_TRUE(array.ok()) << array.status();
  return array.value_or(cli::NpyArray());
}

TensorView View(cli::NpyArray& array) {
  return TensorView::Contiguous(array.data.data(), DType::kF16, MemoryKind::kHost, array.shape[0],
                                array.shape[1], array.shape[2]);
}

class RealInputTest : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Backends, RealInputTest, ::testing::ValuesIn([] {
                           std::vector<std::string> names;
                           for (const BackendEntry& entry : BackendRegistry()) {
                             if (entry.device_count() > 0) names.emplace_back(entry.name);
                           }
                           return names;
                         }()),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           for (char& c : name) c = std::isalnum(c) != 0 ? c : '_';
                           return name;
                         });

TEST_P(RealInputTest, GivesWhatNumpyGives) {
  const auto backend = MakeBackend(GetParam(), {});
  ASSERT_TRUE(backend.ok()) << backend.status();
  const auto executor = (*backend)->MakeExecutor();
  ASSERT_TRUE(executor.ok()) << executor.status();
  for (const int layer : {0, 5}) {
    cli::NpyArray q = Load(layer, "q"), k = Load(layer, "k"), v = Load(layer, "v");
    ASSERT_EQ(q.shape, (std::vector<int64_t>{250, 12, 32}));
    // NaN where nothing is written.
    cli::NpyArray o{cli::NpyType::kF16, q.shape,
                    std::vector<std::byte>(q.data.size(), std::byte{0xff})};
    cli::NpyArray lse{
        cli::NpyType::kF32, {12, 250}, std::vector<std::byte>(12 * 250 * 4, std::byte{0xff})};
    AttentionTask task;
    task.q = View(q);
    task.k = View(k);
    task.v = View(v);
    task.o = View(o);
    task.lse = {reinterpret_cast<float*>(lse.data.data()), MemoryKind::kHost, 250};
    task.seqlen_q = task.seqlen_k = 250;
    task.softmax_scale = 1.0f / std::sqrt(32.0f);
    ASSERT_TRUE(Validate(task).ok()) << Validate(task);
    ASSERT_TRUE((*backend)->Supports(task).ok()) << (*backend)->Supports(task);
    BatchReport report;
    const absl::Status status = (*executor)->Run({absl::MakeConstSpan(&task, 1)}, &report);
    ASSERT_TRUE(status.ok()) << status;
    // P and O are rounded to fp16 (2^-11 of the largest value each), the sum of both and a little.
    const cli::Comparison outputs = cli::Compare(Load(layer, "o"), o, 1.5e-3);
    EXPECT_TRUE(outputs.within) << "layer " << layer << ": " << outputs.max_error;
    const cli::Comparison sums = cli::Compare(Load(layer, "lse"), lse, 1e-4);
    EXPECT_TRUE(sums.within) << "layer " << layer << ": " << sums.max_error;
  }
}

}  // namespace
}  // namespace attend
