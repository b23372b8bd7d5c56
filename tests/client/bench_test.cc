// The parts of the load generator: percentiles, schedules, workloads, checking, reports.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <thread>

#include "cli/histogram.h"
#include "cli/json.h"
#include "cli/report.h"
#include "cli/schedule.h"
#include "cli/verify.h"
#include "cli/workload.h"
#include "kernels/reference/reference.h"
#include "tests/client/bench_fixtures.h"

namespace attend::cli {
namespace {

using ::testing::HasSubstr;

TEST(HistogramTest, SmallValuesAreExact) {
  Histogram histogram;
  for (int64_t value = 0; value < 100; ++value) histogram.Record(value);
  EXPECT_EQ(histogram.Percentile(0), 0);
  EXPECT_EQ(histogram.Percentile(0.5), 49);
  EXPECT_EQ(histogram.Percentile(0.99), 98);
  EXPECT_EQ(histogram.Percentile(1), 99);
  EXPECT_EQ(histogram.mean(), 49.5);
  EXPECT_EQ(histogram.min(), 0);
  EXPECT_EQ(histogram.max(), 99);
}

TEST(HistogramTest, AgreesWithSortingWithinOnePercent) {
  const uint64_t seed = FreshSeed();
  std::mt19937_64 generator(seed);
  std::uniform_real_distribution<double> exponent(0, 42);
  std::vector<int64_t> values;
  Histogram histogram;
  for (int i = 0; i < 20'000; ++i) {
    values.push_back(static_cast<int64_t>(std::exp2(exponent(generator))));
    histogram.Record(values.back());
  }
  std::sort(values.begin(), values.end());
  for (const double share : {0.0, 0.001, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    const auto rank = static_cast<size_t>(std::ceil(share * 20'000));
    const int64_t exact = values[rank == 0 ? 0 : rank - 1];
    const int64_t got = histogram.Percentile(share);
    EXPECT_GE(got, exact) << "seed " << seed;
    EXPECT_LE(static_cast<double>(got), static_cast<double>(exact) * 1.01 + 1) << "seed " << seed;
  }
}

TEST(HistogramTest, TakesWhateverComes) {
  Histogram histogram;
  EXPECT_EQ(histogram.Percentile(0.99), 0);
  histogram.Record(-5);
  histogram.Record(INT64_MAX);
  EXPECT_EQ(histogram.Percentile(0.5), 0);
  EXPECT_EQ(histogram.count(), 2);
  EXPECT_EQ(histogram.Percentile(1), histogram.max());
}

TEST(ScheduleTest, ConstantRateDoesNotDrift) {
  Schedule schedule(Arrivals::kConstant, 3, 1);
  for (int i = 0; i < 3000; ++i) {
    EXPECT_NEAR(static_cast<double>(schedule.Next().count()), i / 3.0 * 1e9, 1);
  }
}

TEST(ScheduleTest, PoissonGapsAreExponential) {
  const uint64_t seed = FreshSeed();
  Schedule schedule(Arrivals::kPoisson, 1000, seed);
  double last = static_cast<double>(schedule.Next().count());
  EXPECT_EQ(last, 0);
  constexpr int kCount = 40'000;
  double sum = 0, squares = 0;
  int short_gaps = 0;
  for (int i = 0; i < kCount; ++i) {
    const double next = static_cast<double>(schedule.Next().count());
    const double gap = (next - last) * 1e-9 * 1000;  // of mean 1
    ASSERT_GE(gap, 0);
    sum += gap;
    squares += gap * gap;
    short_gaps += gap < std::log(2) ? 1 : 0;
    last = next;
  }
  // Mean 1, second moment 2, median ln 2; six standard errors.
  EXPECT_NEAR(sum / kCount, 1, 6 / std::sqrt(kCount)) << "seed " << seed;
  EXPECT_NEAR(squares / kCount, 2, 6 * std::sqrt(20.0 / kCount)) << "seed " << seed;
  EXPECT_NEAR(short_gaps / double{kCount}, 0.5, 3 / std::sqrt(kCount)) << "seed " << seed;
  // The same seed gives the same times.
  Schedule one(Arrivals::kPoisson, 10, seed), two(Arrivals::kPoisson, 10, seed);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(one.Next(), two.Next());
}

TEST(WorkloadTest, ChoicesParse) {
  for (const char* text : {"0", "", "a", "5:4", "0:4", "1:2:3", "1,0", "-3", "4:"}) {
    Choice choice;
    EXPECT_FALSE(ParseValue(text, &choice)) << text;
  }
  EXPECT_EQ(FormatValue(ParseChoice("64:2048")), "64:2048");
  EXPECT_EQ(FormatValue(ParseChoice("64,128")), "64,128");
}

TEST(WorkloadTest, RangesReachBothEndsAndWeighOctavesAlike) {
  const uint64_t seed = FreshSeed();
  std::mt19937_64 generator(seed);
  const Choice choice = ParseChoice("64:2048");
  int below = 0;
  int64_t least = INT64_MAX, most = 0;
  constexpr int kCount = 200'000;
  for (int i = 0; i < kCount; ++i) {
    const int64_t value = choice.Draw(generator);
    least = std::min(least, value);
    most = std::max(most, value);
    below += value < 362 ? 1 : 0;  // sqrt(64 * 2048)
  }
  EXPECT_EQ(least, 64) << "seed " << seed;
  EXPECT_EQ(most, 2048) << "seed " << seed;
  EXPECT_NEAR(below / double{kCount}, 0.5, 0.01) << "seed " << seed;
}

TEST(WorkloadTest, RequestsAreGoodAndRepeat) {
  const uint64_t seed = FreshSeed();
  const auto workload = *Workload::Make(SmallWorkload(), seed);
  const auto again = *Workload::Make(SmallWorkload(), seed);
  int causal = 0;
  for (uint64_t i = 0; i < 300; ++i) {
    const RequestSpec spec = workload->Request(i);
    const RequestSpec same = again->Request(i);
    EXPECT_EQ(spec.heads % spec.kv_heads, 0);
    AttentionTask task = TaskOf(spec);
    std::vector<std::byte> o(static_cast<size_t>(spec.q_bytes()));
    task.o.data = o.data();
    EXPECT_TRUE(Validate(task).ok()) << Validate(task) << " seed " << seed;
    EXPECT_LE(spec.bytes_in(), workload->max_bytes_in());
    causal += spec.causal ? 1 : 0;
    ASSERT_EQ(spec.q_bytes(), same.q_bytes());
    EXPECT_EQ(std::memcmp(spec.q, same.q, static_cast<size_t>(spec.q_bytes())), 0);
    EXPECT_EQ(std::memcmp(spec.v, same.v, static_cast<size_t>(spec.kv_bytes())), 0);
  }
  EXPECT_GT(causal, 75);
  EXPECT_LT(causal, 225);
}

TEST(WorkloadTest, RefusesWhatCannotBe) {
  const auto refused = [](auto change) {
    WorkloadOptions options = SmallWorkload();
    change(options);
    return Workload::Make(options, 1).status().code() == absl::StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(refused([](WorkloadOptions& o) { o.dtypes = {"fp64"}; }));
  EXPECT_TRUE(refused([](WorkloadOptions& o) { o.head_dim = ParseChoice("257"); }));
  EXPECT_TRUE(refused([](WorkloadOptions& o) { o.group = ParseChoice("9"); }));
  EXPECT_TRUE(refused([](WorkloadOptions& o) { o.causal_share = 1.5; }));
  EXPECT_TRUE(refused([](WorkloadOptions& o) { o.rows = ParseChoice("9000000000000000000"); }));
}

// Answers of the oracle itself, as a perfect server would give them.
client::AttendResult PerfectAnswer(const RequestSpec& spec) {
  client::AttendResult result;
  AttentionTask task = TaskOf(spec);
  const client::AttendInputs inputs = InputsOf(spec);
  result.o =
      client::Tensor::Allocate(inputs.q.dtype, inputs.q.shape, static_cast<size_t>(spec.q_bytes()));
  result.lse = client::Tensor::Allocate(client::DataType::kFp32, {spec.heads, spec.rows},
                                        static_cast<size_t>(spec.rows * spec.heads * 4));
  task.o.data = result.o.mutable_bytes().data();
  task.lse.data = reinterpret_cast<float*>(result.lse.mutable_bytes().data());
  task.lse.head_stride = spec.rows;
  reference::Run(task);
  return result;
}

TEST(VerifyTest, AcceptsRightAnswersAndSeesWrongOnes) {
  const uint64_t seed = FreshSeed();
  const auto workload = *Workload::Make(SmallWorkload(), seed);
  for (uint64_t i = 0; i < 60; ++i) {
    const RequestSpec spec = workload->Request(i);
    client::AttendResult result = PerfectAnswer(spec);
    const Sample sample = TakeSample(spec, result, i, 4);
    const Verdict right = Check(sample);
    EXPECT_TRUE(right.right) << right.what << " seed " << seed;

    Sample wrong = sample;
    wrong.o[wrong.o.size() - 1] ^= std::byte{0x40};  // the top of an exponent
    EXPECT_FALSE(Check(wrong).right) << "seed " << seed << " request " << i;
    wrong = sample;
    std::fill(wrong.o.begin(), wrong.o.end(), std::byte{0xff});  // NaN in every type
    EXPECT_FALSE(Check(wrong).right);
    wrong = sample;
    wrong.lse[0] += 0.01f * std::max(1.0f, std::abs(wrong.lse[0]));
    EXPECT_FALSE(Check(wrong).right);
    wrong = sample;
    wrong.o.pop_back();
    EXPECT_FALSE(Check(wrong).right);
  }
}

// The same data under another mask is a wrong answer, also where the values are alike.
TEST(VerifyTest, SeesAMaskThatWasIgnored) {
  WorkloadOptions options = SmallWorkload();
  options.rows = ParseChoice("33:40");
  options.kv_rows.reset();
  options.causal_share = 1;
  const auto workload = *Workload::Make(options, FreshSeed());
  for (uint64_t i = 0; i < 20; ++i) {
    const RequestSpec spec = workload->Request(i);
    RequestSpec dense = spec;
    dense.causal = false;
    EXPECT_FALSE(Check(TakeSample(spec, PerfectAnswer(dense), i, 4)).right);
  }
}

TEST(VerifyTest, SamplesTheEnds) {
  const auto workload = *Workload::Make(SmallWorkload(), 5);
  const RequestSpec spec = workload->Request(3);
  const Sample sample = TakeSample(spec, PerfectAnswer(spec), 3, 4);
  EXPECT_EQ(sample.rows.front(), 0);
  EXPECT_EQ(sample.rows.back(), spec.rows - 1);
  EXPECT_LE(sample.rows.size(), 4u);
}

TEST(ReportTest, BothFormsSayTheSame) {
  Report report;
  report.seed = 18446744073709551615u;
  report.address = "a \"quoted\" address";
  report.load.sent = 10;
  report.load.ok = 9;
  report.load.seconds = 2;
  report.load.batch_requests = {{1, 3}, {3, 6}};
  report.load.errors[absl::StatusCode::kInternal] = 1;
  report.load.first_error[absl::StatusCode::kInternal] = "INTERNAL: \x01 bad\n";
  report.check.answers = 4;
  report.check.wrong = 1;
  const std::string text = ReportText(report);
  // 3 batches of one and 2 of three.
  EXPECT_THAT(text, HasSubstr("1.80 requests on average, at most 3; 67 % of requests shared one"));
  EXPECT_THAT(text, HasSubstr("4.5 requests/s"));
  EXPECT_THAT(text, HasSubstr("1 WRONG"));
  const std::string json = ReportJson(report);
  EXPECT_THAT(json, HasSubstr("\"seed\":\"18446744073709551615\""));
  EXPECT_THAT(json, HasSubstr("a \\\"quoted\\\" address"));
  EXPECT_THAT(json, HasSubstr("\\u0001 bad\\u000a"));
  EXPECT_THAT(json, HasSubstr("\"mean_requests\":1.8,"));
  EXPECT_THAT(json, HasSubstr("\"requests_by_batch_size\":{\"1\":3,\"3\":6}"));
}

TEST(JsonTest, NestsAndSeparates) {
  JsonWriter json;
  json.BeginObject();
  json.BeginArray("empty");
  json.EndArray();
  json.BeginArray("numbers");
  json.Element(1);
  json.Element(2.5);
  json.Element(std::nan(""));
  json.EndArray();
  json.BeginObject("in");
  json.Field("yes", true);
  json.EndObject();
  json.Field("last", "x");
  json.EndObject();
  EXPECT_EQ(json.text(), R"({"empty":[],"numbers":[1,2.5,null],"in":{"yes":true},"last":"x"})");
}

}  // namespace
}  // namespace attend::cli
