// A server with a device that tests hold and release, and clients of Attend.

#ifndef ATTEND_TESTS_SERVER_RPC_ATTEND_FIXTURE_H_
#define ATTEND_TESTS_SERVER_RPC_ATTEND_FIXTURE_H_

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "tests/testing/server_fixture.h"

namespace attend::testing {

class AttendTest : public ::testing::Test {
 protected:
  v1::AttendRequest Small() { return MakeRequest({}, &random_); }
  int http() { return fixture_->server().http_port(); }
  void Restart(const ServerOptions& options, int devices = 1) {
    fixture_.reset();
    fixture_.emplace(options, devices);
    stub_ = fixture_->Stub();
  }
  // Nothing in flight and no staging held, as before the first request.
  ::testing::AssertionResult BackToWhereItWas() {
    const bool back = Eventually([&] {
      const EngineStats stats = fixture_->server().engines().stats();
      return stats.in_flight_requests == 0 && stats.in_flight_bytes == 0 &&
             stats.staging_used_bytes == 0 && stats.queued_requests == 0;
    });
    return back ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << "still held";
  }

  Random random_{MixSeed(TestSeed(), "attend")};
  std::optional<ServerFixture> fixture_{std::in_place};
  std::unique_ptr<v1::AttentionService::Stub> stub_ = fixture_->Stub();
};

}  // namespace attend::testing

#endif  // ATTEND_TESTS_SERVER_RPC_ATTEND_FIXTURE_H_
