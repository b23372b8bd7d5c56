#include "server/ops/http_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>

#include "server/ops/log.h"
#include "tests/testing/server_fixture.h"

namespace attend {
namespace {

using ::testing::HasSubstr;
using testing::Http;
using testing::HttpGet;
using testing::HttpReply;

class HttpServerTest : public ::testing::Test {
 protected:
  HttpServerTest() {
    HttpPages pages;
    pages.metrics = [this] {
      if (throwing_) throw std::runtime_error("broken collector");
      return std::string("some_metric 1\n");
    };
    pages.live = [this] { return live_.load(); };
    pages.ready = [this] { return ready_.load(); };
    pages.version = "{\"version\":\"1\"}\n";
    HttpOptions options;
    options.listen = "127.0.0.1:0";
    auto started = HttpServer::Start(options, pages);
    EXPECT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
  }
  int port() const { return server_->port(); }

  std::atomic<bool> live_{true}, ready_{false}, throwing_{false};
  std::unique_ptr<HttpServer> server_;
};

TEST_F(HttpServerTest, Pages) {
  HttpReply reply = HttpGet(port(), "/metrics");
  EXPECT_EQ(reply.code, 200);
  EXPECT_EQ(reply.body, "some_metric 1\n");
  EXPECT_THAT(reply.headers, HasSubstr("Content-Type: text/plain; version=0.0.4; charset=utf-8"));
  EXPECT_EQ(HttpGet(port(), "/livez").code, 200);
  EXPECT_EQ(HttpGet(port(), "/readyz").code, 503);
  ready_ = true;
  live_ = false;
  EXPECT_EQ(HttpGet(port(), "/readyz").code, 200);
  EXPECT_EQ(HttpGet(port(), "/livez").code, 503);
  EXPECT_EQ(HttpGet(port(), "/version").body, "{\"version\":\"1\"}\n");
  EXPECT_EQ(HttpGet(port(), "/").code, 404);
  EXPECT_EQ(HttpGet(port(), "/metrics2").code, 404);
  EXPECT_EQ(HttpGet(port(), "/metrics/x").code, 404);
  EXPECT_EQ(HttpGet(port(), "/../../etc/passwd").code, 404);
}

TEST_F(HttpServerTest, HeadHasNoBodyAndPostIsRefused) {
  const HttpReply head = Http(port(), "HEAD /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(head.code, 200);
  EXPECT_THAT(head.headers, HasSubstr("Content-Length: 14\r\n"));
  EXPECT_EQ(head.body, "");
  const HttpReply post =
      Http(port(), "POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n");
  EXPECT_EQ(post.code, 405);
  EXPECT_THAT(post.headers, HasSubstr("Allow: GET, HEAD\r\n"));
}

TEST_F(HttpServerTest, AThrowingPageIsA500) {
  throwing_ = true;
  EXPECT_EQ(HttpGet(port(), "/metrics").code, 500);
  throwing_ = false;
  EXPECT_EQ(HttpGet(port(), "/metrics").code, 200);
}

TEST_F(HttpServerTest, GarbageIsRefused) {
  EXPECT_GE(Http(port(), "\x16\x03\x01\x02\x00\x01\r\n\r\n").code, 400);
  EXPECT_EQ(HttpGet(port(), "/livez").code, 200);
}

TEST_F(HttpServerTest, LogLevel) {
  StartLog(LogFormat::kText, LogLevel::kError);
  EXPECT_EQ(HttpGet(port(), "/log-level").body, "error\n");
  const auto put = [&](const std::string& level) {
    return Http(port(), "PUT /log-level HTTP/1.1\r\nHost: x\r\nContent-Length: " +
                            std::to_string(level.size()) + "\r\n\r\n" + level);
  };
  EXPECT_EQ(put("off").body, "off\n");
  EXPECT_EQ(GetLogLevel(), LogLevel::kOff);
  EXPECT_EQ(put("loud").code, 400);
  EXPECT_EQ(GetLogLevel(), LogLevel::kOff);
  StopLog();
}

TEST_F(HttpServerTest, IdleConnectionsDoNotBlockScrapes) {
  std::vector<int> idle;
  for (int i = 0; i < 12; ++i) {
    idle.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(connect(idle.back(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  EXPECT_EQ(HttpGet(port(), "/metrics").code, 200);
  for (int fd : idle) close(fd);
}

TEST_F(HttpServerTest, MoreIdleConnectionsThanThreadsEndByThemselves) {
  std::vector<int> idle;
  for (int i = 0; i < 40; ++i) {
    idle.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ASSERT_EQ(connect(idle.back(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  }
  EXPECT_TRUE(testing::Eventually([&] { return HttpGet(port(), "/metrics").code == 200; }));
  for (int fd : idle) close(fd);
}

TEST(HttpServerStartTest, TakenPortAndBadAddresses) {
  HttpOptions options;
  options.listen = "127.0.0.1:0";
  HttpPages pages;
  const auto first = HttpServer::Start(options, pages);
  ASSERT_TRUE(first.ok());
  options.listen = "127.0.0.1:" + std::to_string((*first)->port());
  const absl::Status taken = HttpServer::Start(options, pages).status();
  EXPECT_EQ(taken.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(taken.message()), HasSubstr(options.listen));
  for (const char* bad : {"127.0.0.1", "9464", ":9464", "127.0.0.1:", "127.0.0.1:99999",
                          "[::]:9464", "127.0.0.1:-1", "127.0.0.1:80s"}) {
    options.listen = bad;
    EXPECT_EQ(HttpServer::Start(options, pages).status().code(), absl::StatusCode::kInvalidArgument)
        << bad;
  }
}

}  // namespace
}  // namespace attend
