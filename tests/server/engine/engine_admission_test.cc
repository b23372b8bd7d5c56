// Who may come in, and what an Admission holds.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <utility>
#include <vector>

#include "kernels/errors.h"
#include "server/engine/admission_control.h"
#include "server/engine/engine.h"
#include "server/engine/reasons.h"
#include "tests/server/engine/engine_test_util.h"

namespace attend {
namespace {

using testing::EngineTest;

class AdmissionTest : public EngineTest {
 protected:
  absl::StatusOr<Admission> Admit(const std::string& client, size_t bytes, double flops = 0) {
    return engine_->Admit({client, bytes, flops});
  }

  static void ExpectRefusal(const absl::Status& status, std::string_view reason) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_EQ(ReasonOf(status), std::string(reason));
    ASSERT_TRUE(RetryAfterOf(status).has_value());
    EXPECT_GT(RetryAfterOf(status)->count(), 0);
    EXPECT_LE(*RetryAfterOf(status), DrainRate::kLongest);
  }
};

TEST_F(AdmissionTest, HoldsMemoryAndAPlaceUntilItsEnd) {
  Start();
  {
    Admission admission = Admit("a", 1000, 5e6).value();
    ASSERT_NE(admission.staging(), nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(admission.staging()) % 256, 0u);
    EXPECT_EQ(admission.staging_bytes(), 1000u);
    EXPECT_EQ(admission.memory_kind(), MemoryKind::kHost);
    std::memset(admission.staging(), 7, admission.staging_bytes());
    EXPECT_EQ(engine_->stats().in_flight_requests, 1);
    EXPECT_EQ(engine_->stats().in_flight_bytes, 1024);
    EXPECT_EQ(engine_->stats().in_flight_flops, 5e6);
    EXPECT_EQ(engine_->stats().staging_used_bytes, 1024);
    Admission moved = std::move(admission);
    EXPECT_EQ(admission.staging(), nullptr);
    EXPECT_EQ(admission.staging_bytes(), 0u);
    admission = std::move(moved);
    EXPECT_EQ(engine_->stats().in_flight_requests, 1);
  }
  ExpectIdle();
}

TEST_F(AdmissionTest, OutlivesItsEngine) {
  Start();
  Admission admission = Admit("a", 1000).value();
  engine_.reset();
  std::memset(admission.staging(), 7, admission.staging_bytes());
  admission = Admission();
  EXPECT_EQ(device_->staging_bytes(), 0) << "the last admission takes the pool with it";
}

TEST_F(AdmissionTest, RefusesRequestsPastTheCount) {
  options_.max_in_flight_requests = 2;
  options_.client_share = 1;
  Start();
  Admission a = Admit("a", 10).value();
  Admission b = Admit("b", 10).value();
  ExpectRefusal(Admit("c", 10).status(), kReasonQueueFull);
  a = Admission();
  EXPECT_TRUE(Admit("c", 10).ok());
}

TEST_F(AdmissionTest, RefusesBytesPastTheLimit) {
  options_.client_share = 1;
  Start();
  Admission a = Admit("a", 600 << 10).value();
  ExpectRefusal(Admit("b", 600 << 10).status(), kReasonMemory);
  EXPECT_EQ(engine_->stats().in_flight_requests, 1) << "a refusal leaves nothing behind";
  a = Admission();
  EXPECT_TRUE(Admit("b", 600 << 10).ok());
}

TEST_F(AdmissionTest, SaysNeverToWhatCannotFit) {
  Start();
  EXPECT_TRUE(Admit("a", 1 << 20).ok()) << "all of it fits";
  for (const size_t bytes : {size_t{(1 << 20) + 1}, size_t{SIZE_MAX}}) {
    const absl::Status status = Admit("a", bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ReasonOf(status), std::string(kReasonTooLarge));
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("max_in_flight_bytes"));
    EXPECT_FALSE(RetryAfterOf(status).has_value());
  }
  ExpectIdle();
}

TEST_F(AdmissionTest, OneClientCannotTakeAll) {
  options_.max_in_flight_requests = 4;
  options_.client_share = 0.5;
  Start();
  std::vector<Admission> held;
  held.push_back(Admit("a", 10).value());
  held.push_back(Admit("a", 10).value());
  ExpectRefusal(Admit("a", 10).status(), kReasonClientShare);
  held.push_back(Admit("b", 10).value());
  held.push_back(Admit("b", 10).value());
  held.erase(held.begin());
  EXPECT_TRUE(Admit("a", 10).ok());
}

TEST_F(AdmissionTest, ASharePastHalfTheBytesIsRefusedUnlessItIsTheOnlyRequest) {
  options_.client_share = 0.5;
  Start();
  Admission first = Admit("a", 400 << 10).value();
  ExpectRefusal(Admit("a", 200 << 10).status(), kReasonClientShare);
  Admission other = Admit("b", 200 << 10).value();
  first = Admission();
  EXPECT_TRUE(Admit("a", 600 << 10).ok()) << "nothing else of this client is in flight";
}

TEST_F(AdmissionTest, TellsOfAHostWithoutMemory) {
  Start();
  device_->staging_limit = 1 << 16;  // what the engine holds already
  ExpectRefusal(Admit("a", 1 << 17).status(), kReasonMemory);
  EXPECT_EQ(observer_.Of("staging"), 1);
  ExpectIdle();
  EXPECT_TRUE(Admit("a", 1 << 10).ok());
}

TEST(AdmissionControlTest, HintsFollowTheRateOfDrain) {
  EngineOptions options;
  options.max_in_flight_requests = 8;
  options.client_share = 1;
  AdmissionControl control(options);
  Clock::time_point now{std::chrono::hours(1)};
  for (int i = 0; i < 8; ++i) ASSERT_TRUE(control.Enter("a", 256, 0, now).ok());
  EXPECT_EQ(RetryAfterOf(control.Enter("a", 256, 0, now)), DrainRate::kUnknown);
  // One leaves and one comes every 100 ms: a quarter of the queue takes 200 ms.
  for (int i = 0; i < 100; ++i) {
    now += std::chrono::milliseconds(100);
    control.Leave("a", 256, 0, true, now);
    ASSERT_TRUE(control.Enter("a", 256, 0, now).ok());
  }
  const auto hint = RetryAfterOf(control.Enter("a", 256, 0, now));
  ASSERT_TRUE(hint.has_value());
  EXPECT_GE(hint->count(), 150);
  EXPECT_LE(hint->count(), 250);
}

TEST(DrainRateTest, EstimatesASteadyStreamFromItsFirstSecondsOn) {
  DrainRate rate;
  Clock::time_point now{std::chrono::hours(1)};
  EXPECT_EQ(rate.TimeToDrain(1, 0, now), DrainRate::kUnknown);
  for (int i = 1; i <= 2000; ++i) {
    now += std::chrono::milliseconds(10);
    rate.Record(1000, now);
    if (i < 50 || i % 100 != 0) continue;
    // 100 requests and 100,000 bytes a second.
    EXPECT_NEAR(static_cast<double>(rate.TimeToDrain(50, 0, now).count()), 500, 30) << i;
    EXPECT_NEAR(static_cast<double>(rate.TimeToDrain(0, 200'000, now).count()), 2000, 120) << i;
  }
}

TEST(DrainRateTest, StaysWithinItsBounds) {
  DrainRate rate;
  Clock::time_point now{std::chrono::hours(1)};
  rate.Record(1, now);
  EXPECT_EQ(rate.TimeToDrain(0, 0, now), DrainRate::kShortest);
  EXPECT_EQ(rate.TimeToDrain(1'000'000, 0, now), DrainRate::kLongest);
  EXPECT_EQ(rate.TimeToDrain(0, INT64_MAX, now), DrainRate::kLongest);
  EXPECT_EQ(rate.TimeToDrain(1, 1, now + std::chrono::hours(1)), DrainRate::kLongest)
      << "nothing has moved for an hour";
}

}  // namespace
}  // namespace attend
