// GetServerInfo and reflection.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/testing/server_fixture.h"

namespace attend {
namespace {

using ::testing::Contains;
using testing::ServerFixture;

TEST(ServerInfoTest, TellsLimitsDevicesAndOptions) {
  ServerOptions options = ServerFixture::Options();
  options.grpc.max_receive_message_bytes = 123456;
  options.engine.max_in_flight_requests = 77;
  options.engine.client_share = 0.25;
  ServerFixture fixture(options, 2);
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  ASSERT_TRUE(fixture.Stub()->GetServerInfo(&context, {}, &info).ok());
  EXPECT_EQ(info.backend(), "fake");
  EXPECT_FALSE(info.version().empty());
  EXPECT_EQ(info.devices_size(), 2);
  EXPECT_EQ(info.limits().max_receive_message_bytes(), 123456);
  EXPECT_EQ(info.limits().max_in_flight_requests(), 77);
  EXPECT_EQ(info.limits().max_in_flight_bytes(), options.engine.max_in_flight_bytes);
  EXPECT_EQ(info.limits().client_share(), 0.25);
  EXPECT_EQ(info.limits().max_head_dim(), 256);
  EXPECT_THAT(info.data_types(), ::testing::ElementsAre(1, 2, 3));
  for (const char* feature : {"causal", "window", "softcap", "bias"}) {
    EXPECT_THAT(info.features(), Contains(feature));
  }
}

TEST(ServerInfoTest, UnknownFieldIsRefused) {
  ServerFixture fixture;
  v1::GetServerInfoRequest request;
  request.GetReflection()->MutableUnknownFields(&request)->AddVarint(5, 1);
  grpc::ClientContext context;
  v1::GetServerInfoResponse info;
  const grpc::Status status = fixture.Stub()->GetServerInfo(&context, request, &info);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(testing::InfoOf(status).field, "5");
}

}  // namespace
}  // namespace attend
