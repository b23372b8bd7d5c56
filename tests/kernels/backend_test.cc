// The registry, the features, host staging, and what every backend must promise beside results.

#include "kernels/backend.h"

#include <gtest/gtest.h>

#include <cstring>
#include <functional>
#include <limits>
#include <set>
#include <string>

#include "kernels/errors.h"
#include "kernels/host_staging.h"
#include "tests/testing/fake_backend.h"

namespace attend {
namespace {

float memory[1];

AttentionTask Task() {
  AttentionTask task;
  task.q = task.k = task.v = task.o =
      TensorView::Contiguous(memory, DType::kBF16, MemoryKind::kHost, 4, 2, 8);
  task.seqlen_q = task.seqlen_k = 4;
  return task;
}

FeatureSet AllBut(Feature missing) {
  FeatureSet features;
  for (const Feature feature : List(kAllFeatures)) {
    if (feature != missing) features.Add(feature);
  }
  return features;
}

TEST(Features, EachOptionOfATaskNeedsItsBit) {
  const struct {
    Feature feature;
    std::function<void(AttentionTask&)> use;
  } rows[] = {
      {Feature::kBf16, [](AttentionTask&) {}},
      {Feature::kFp16, [](AttentionTask& t) { t.q.dtype = DType::kF16; }},
      {Feature::kFp32, [](AttentionTask& t) { t.q.dtype = DType::kF32; }},
      {Feature::kCausal, [](AttentionTask& t) { t.mask.causal = true; }},
      {Feature::kWindow, [](AttentionTask& t) { t.mask.window_left = 0; }},
      {Feature::kWindow, [](AttentionTask& t) { t.mask.window_right = 0; }},
      {Feature::kSoftcap, [](AttentionTask& t) { t.softcap = 1; }},
      {Feature::kBias, [](AttentionTask& t) { t.bias.data = memory; }},
      {Feature::kAlibi, [](AttentionTask& t) { t.alibi_slopes.data = memory; }},
      {Feature::kSinks, [](AttentionTask& t) { t.sinks.data = memory; }},
      {Feature::kLse, [](AttentionTask& t) { t.lse.data = memory; }},
      {Feature::kGroupedHeads, [](AttentionTask& t) { t.k.heads = t.v.heads = 1; }},
      {Feature::kValueHeadDim, [](AttentionTask& t) { t.v.columns = 4; }},
  };
  for (const auto& [feature, use] : rows) {
    AttentionTask task = Task();
    use(task);
    EXPECT_EQ(CheckFeatures(task, kAllFeatures, "any"), absl::OkStatus()) << Name(feature);
    const absl::Status status = CheckFeatures(task, FeatureSet(), "bare");
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    // Without just this bit it is this one that is named.
    const absl::Status named = CheckFeatures(task, AllBut(feature), "partial");
    EXPECT_EQ(named.code(), absl::StatusCode::kUnimplemented) << Name(feature);
    EXPECT_EQ(FieldOf(named), std::string(Name(feature)));
    EXPECT_NE(named.message().find("partial"), absl::string_view::npos);
  }
}

TEST(Features, NamesAreDistinctAndListed) {
  std::set<std::string_view> names;
  for (const Feature feature : List(kAllFeatures)) names.insert(Name(feature));
  EXPECT_EQ(names.size(), 13u);
  EXPECT_EQ(names.count("unknown"), 0u);
  EXPECT_TRUE(List(FeatureSet()).empty());
  const std::vector<Feature> two = List({Feature::kLse, Feature::kCausal});
  EXPECT_EQ(two, (std::vector<Feature>{Feature::kCausal, Feature::kLse}));
}

TEST(Registry, RowsAreNamedOnceAndTheOracleIsLast) {
  std::set<std::string_view> names;
  for (const BackendEntry& entry : BackendRegistry()) {
    EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
    EXPECT_FALSE(entry.description.empty());
    EXPECT_GE(entry.device_count(), 0);
  }
  ASSERT_FALSE(BackendRegistry().empty());
  EXPECT_EQ(BackendRegistry().back().name, "reference");
  EXPECT_EQ(names.count("cpu"), 1u);
  EXPECT_EQ(names.count("unfused-cpu"), 1u);
}

TEST(Registry, UnknownNamesGetTheChoices) {
  const absl::Status status = MakeBackend("abacus", {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  for (const char* choice : {"abacus", "auto", "cpu", "reference"}) {
    EXPECT_NE(status.message().find(choice), absl::string_view::npos) << status;
  }
  EXPECT_EQ(MakeBackend("", {}).status().code(), absl::StatusCode::kNotFound);
}

TEST(Registry, AutoTakesTheFirstThatMayAndCan) {
  const absl::StatusOr<std::unique_ptr<Backend>> backend = MakeBackend("auto", {});
  ASSERT_EQ(backend.status(), absl::OkStatus());
  for (const BackendEntry& entry : BackendRegistry()) {
    if (!entry.chosen_by_auto || entry.device_count() == 0) continue;
    EXPECT_EQ((*backend)->name(), entry.name);
    return;
  }
  FAIL() << "no row may be chosen";
}

TEST(Registry, ABackendWithoutDeviceIsUnavailable) {
  for (const BackendEntry& entry : BackendRegistry()) {
    const absl::StatusOr<std::unique_ptr<Backend>> backend = MakeBackend(entry.name, {});
    if (entry.device_count() == 0) {
      EXPECT_EQ(backend.status().code(), absl::StatusCode::kUnavailable) << entry.name;
      continue;
    }
    if (absl::IsUnavailable(backend.status())) continue;  // a library that it loads is missing
    ASSERT_EQ(backend.status(), absl::OkStatus()) << entry.name;
    EXPECT_EQ((*backend)->name(), entry.name);
    EXPECT_FALSE((*backend)->device().name.empty());
    EXPECT_FALSE((*backend)->device().architecture.empty());
    EXPECT_GE((*backend)->PreferredExecutors(), 1);
    EXPECT_EQ((*backend)->Healthy(), absl::OkStatus());
    EXPECT_FALSE((*backend)->KernelNames().empty());
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      AttentionTask task = Task();
      task.q.dtype = task.k.dtype = task.v.dtype = task.o.dtype = dtype;
      ASSERT_EQ((*backend)->Supports(task), absl::OkStatus()) << entry.name;
      EXPECT_EQ((*backend)->Classify(task), (*backend)->Classify(task));
    }
  }
}

TEST(Registry, StagingIsAlignedAndWritable) {
  for (const BackendEntry& entry : BackendRegistry()) {
    if (entry.device_count() == 0) continue;
    const absl::StatusOr<std::unique_ptr<Backend>> backend = MakeBackend(entry.name, {});
    if (absl::IsUnavailable(backend.status())) continue;
    ASSERT_EQ(backend.status(), absl::OkStatus());
    for (const size_t bytes : {size_t{1}, size_t{4096}, size_t{1000001}}) {
      const absl::StatusOr<std::unique_ptr<Staging>> staging = (*backend)->AllocateStaging(bytes);
      ASSERT_EQ(staging.status(), absl::OkStatus()) << entry.name;
      EXPECT_GE((*staging)->size(), bytes);
      EXPECT_EQ(reinterpret_cast<uintptr_t>((*staging)->data()) % 256, 0u);
      EXPECT_NE((*staging)->memory_kind(), MemoryKind::kDevice);
      std::memset((*staging)->data(), 0x5a, bytes);
    }
  }
}

TEST(HostStaging, TooMuchIsRefused) {
  EXPECT_EQ(MakeHostStaging(std::numeric_limits<size_t>::max()).status().code(),
            absl::StatusCode::kResourceExhausted);
  const absl::StatusOr<std::unique_ptr<Staging>> empty = MakeHostStaging(0);
  ASSERT_EQ(empty.status(), absl::OkStatus());
  EXPECT_EQ((*empty)->size(), 0u);
}

TEST(HostStaging, DeviceMemoryIsRefusedByName) {
  AttentionTask task = Task();
  EXPECT_EQ(CheckOnHost(task, "x"), absl::OkStatus());
  task.k.memory = MemoryKind::kPinned;
  EXPECT_EQ(CheckOnHost(task, "x"), absl::OkStatus());
  task.sinks.memory = MemoryKind::kDevice;
  EXPECT_EQ(FieldOf(CheckOnHost(task, "x")), "sinks");
  EXPECT_EQ(CheckOnHost(task, "x").code(), absl::StatusCode::kUnimplemented);
}

TEST(UnfusedCpu, ScoresPastTheLimitAreRefused) {
  BackendOptions options;
  options.device_memory_limit = 1 << 20;
  const absl::StatusOr<std::unique_ptr<Backend>> backend = MakeBackend("unfused-cpu", options);
  ASSERT_EQ(backend.status(), absl::OkStatus());
  const absl::StatusOr<std::unique_ptr<Executor>> executor = (*backend)->MakeExecutor();
  ASSERT_EQ(executor.status(), absl::OkStatus());
  AttentionTask task = Task();
  task.q = task.k = task.v = task.o =
      TensorView::Contiguous(memory, DType::kBF16, MemoryKind::kHost, 1 << 20, 1, 8);
  task.seqlen_q = task.seqlen_k = 1 << 20;
  BatchReport report;
  EXPECT_EQ((*executor)->Run({{&task, 1}}, &report).code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace attend
