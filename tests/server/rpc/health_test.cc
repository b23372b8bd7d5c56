// grpc.health.v1 tells the truth.

#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "tests/testing/server_fixture.h"

namespace attend {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;
using testing::Eventually;
using testing::ServerFixture;

constexpr char kService[] = "attend.v1.AttentionService";

class HealthTest : public ::testing::Test {
 protected:
  grpc::Status Check(const std::string& name, HealthCheckResponse::ServingStatus* status) {
    grpc::ClientContext context;
    HealthCheckRequest request;
    request.set_service(name);
    HealthCheckResponse response;
    const grpc::Status result = stub_->Check(&context, request, &response);
    *status = response.status();
    return result;
  }

  ServerFixture fixture_;
  std::unique_ptr<Health::Stub> stub_ = Health::NewStub(fixture_.Connect());
};

TEST_F(HealthTest, ServingOnBothNames) {
  HealthCheckResponse::ServingStatus status;
  for (const char* name : {"", kService}) {
    EXPECT_TRUE(Check(name, &status).ok());
    EXPECT_EQ(status, HealthCheckResponse::SERVING);
  }
  EXPECT_EQ(Check("other", &status).error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(HealthTest, NotServingOnceStopping) {
  fixture_.server().StopBeingReady();
  HealthCheckResponse::ServingStatus status;
  EXPECT_TRUE(Check(kService, &status).ok());
  EXPECT_EQ(status, HealthCheckResponse::NOT_SERVING);
  EXPECT_EQ(testing::HttpGet(fixture_.server().http_port(), "/readyz").code, 503);
  EXPECT_EQ(testing::HttpGet(fixture_.server().http_port(), "/livez").code, 200);
}

TEST_F(HealthTest, NotServingWithASickDeviceThoughIdle) {
  std::promise<absl::Status> told;
  fixture_.server().OnUnhealthy([&](const absl::Status& status) { told.set_value(status); });
  fixture_.device().SetHealth(absl::UnavailableError("fell off the bus"));
  fixture_.server().Tend();
  EXPECT_EQ(told.get_future().get().code(), absl::StatusCode::kUnavailable);
  HealthCheckResponse::ServingStatus status;
  EXPECT_TRUE(Check("", &status).ok());
  EXPECT_EQ(status, HealthCheckResponse::NOT_SERVING);
  fixture_.server().Tend();  // told once: a second promise would throw
}

TEST_F(HealthTest, WatchFollowsAndEndsWithTheServer) {
  grpc::ClientContext context;
  HealthCheckRequest request;
  request.set_service(kService);
  const auto watch = stub_->Watch(&context, request);
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  fixture_.server().StopBeingReady();
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  std::thread drain([&] { EXPECT_TRUE(fixture_.server().Drain().ok()); });
  EXPECT_FALSE(watch->Read(&response));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  drain.join();
}

TEST_F(HealthTest, WatchOfAnUnknownName) {
  grpc::ClientContext context;
  HealthCheckRequest request;
  request.set_service("other");
  const auto watch = stub_->Watch(&context, request);
  HealthCheckResponse response;
  ASSERT_TRUE(watch->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVICE_UNKNOWN);
  context.TryCancel();
  EXPECT_FALSE(watch->Read(&response));
  EXPECT_EQ(watch->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

}  // namespace
}  // namespace attend
