#include "tests/testing/server_fixture.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "attend/v1/error_details.pb.h"
#include "kernels/reference/reference.h"

namespace attend::testing {

bool Eventually(const std::function<bool()>& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (std::chrono::steady_clock::now() < deadline) {
    if (condition()) return true;
    poll(nullptr, 0, 1);  // spares the processor; nothing depends on its length
  }
  return condition();
}

ServerOptions ServerFixture::Options() {
  ServerOptions options;
  options.grpc.listen = "127.0.0.1:0";
  options.http.listen = "127.0.0.1:0";
  options.engine.staging_slab_bytes = int64_t{1} << 20;
  options.engine.staging_initial_bytes = int64_t{1} << 20;
  options.drain_timeout = std::chrono::seconds(20);
  return options;
}

ServerFixture::ServerFixture(ServerOptions options, int devices) {
  std::vector<std::unique_ptr<Backend>> backends;
  for (int i = 0; i < devices; ++i) {
    devices_.push_back(std::make_shared<FakeDevice>());
    devices_.back()->compute = [](const AttentionTask& task) { reference::Run(task); };
    backends.push_back(MakeFakeBackend(devices_.back()));
  }
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options, std::move(backends));
  if (!server.ok()) {
    ADD_FAILURE() << "no server: " << server.status();
    std::abort();
  }
  server_ = *std::move(server);
}

std::string ServerFixture::address() const {
  return absl::StrCat("127.0.0.1:", server_->grpc_port());
}

std::shared_ptr<grpc::Channel> ServerFixture::Connect() const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetMaxReceiveMessageSize(-1);
  return grpc::CreateCustomChannel(address(), grpc::InsecureChannelCredentials(), arguments);
}

std::unique_ptr<v1::AttentionService::Stub> ServerFixture::Stub() const {
  return v1::AttentionService::NewStub(Connect());
}

CallResult Call(v1::AttentionService::Stub* stub, const v1::AttendRequest& request,
                const ContextSetter& set) {
  CallResult result;
  grpc::ClientContext context;
  if (set) set(&context);
  result.status = stub->Attend(&context, request, &result.reply);
  const auto& initial = context.GetServerInitialMetadata();
  if (const auto found = initial.find("x-request-id"); found != initial.end()) {
    result.request_id.assign(found->second.data(), found->second.size());
  }
  const auto& trailing = context.GetServerTrailingMetadata();
  if (const auto found = trailing.find("grpc-retry-pushback-ms"); found != trailing.end()) {
    result.pushback.emplace(found->second.data(), found->second.size());
  }
  return result;
}

ErrorInfo InfoOf(const std::string& serialized_details) {
  ErrorInfo out;
  v1::RpcStatus details;
  if (!details.ParseFromString(serialized_details)) return out;
  for (const auto& any : details.details()) {
    v1::RpcErrorInfo info;
    v1::RpcBadRequest bad_request;
    v1::RpcRetryInfo retry;
    v1::RpcRequestInfo request;
    if (any.type_url().ends_with("ErrorInfo") && info.ParseFromString(any.value())) {
      out.reason = info.reason();
    } else if (any.type_url().ends_with("BadRequest") && bad_request.ParseFromString(any.value())) {
      out.field = bad_request.field_violations(0).field();
    } else if (any.type_url().ends_with("RetryInfo") && retry.ParseFromString(any.value())) {
      out.retry_seconds =
          static_cast<double>(retry.retry_delay().seconds()) + 1e-9 * retry.retry_delay().nanos();
    } else if (any.type_url().ends_with("RequestInfo") && request.ParseFromString(any.value())) {
      out.request_id = request.request_id();
    }
  }
  return out;
}

std::optional<double> MetricOf(int http_port, const std::string& series) {
  std::istringstream page(HttpGet(http_port, "/metrics").body);
  std::string line;
  while (std::getline(page, line)) {
    if (line.rfind(series + " ", 0) != 0) continue;
    double value;
    if (absl::SimpleAtod(line.substr(series.size() + 1), &value)) return value;
  }
  return std::nullopt;
}

HttpReply Http(int port, const std::string& request) {
  HttpReply reply;
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const timeval timeout{30, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  std::string text;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      send(fd, request.data(), request.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(request.size())) {
    char buffer[65536];
    for (ssize_t got; (got = recv(fd, buffer, sizeof buffer, 0)) > 0;) {
      text.append(buffer, static_cast<size_t>(got));
    }
  }
  close(fd);
  const size_t end = text.find("\r\n\r\n");
  if (end == std::string::npos || text.rfind("HTTP/1.", 0) != 0) return reply;
  reply.code = std::atoi(text.c_str() + 9);
  reply.headers = text.substr(0, end + 2);
  reply.body = text.substr(end + 4);
  return reply;
}

HttpReply HttpGet(int port, const std::string& path) {
  return Http(port, absl::StrCat("GET ", path,
                                 " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"));
}

}  // namespace attend::testing
