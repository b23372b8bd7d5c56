#include "server/ops/http_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <exception>
#include <stop_token>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "civetweb.h"
#include "server/ops/log.h"

namespace attend {
namespace {

struct Page {
  int code = 200;
  const char* content_type = "text/plain; charset=utf-8";
  std::string body;
  const char* allow = nullptr;  // with 405
};

void Send(mg_connection* connection, const Page& page, bool with_body) {
  const char* reason = page.code == 200   ? "OK"
                       : page.code == 400 ? "Bad Request"
                       : page.code == 403 ? "Forbidden"
                       : page.code == 404 ? "Not Found"
                       : page.code == 405 ? "Method Not Allowed"
                       : page.code == 503 ? "Service Unavailable"
                                          : "Internal Server Error";
  std::string head =
      absl::StrCat("HTTP/1.1 ", page.code, " ", reason, "\r\nContent-Type: ", page.content_type,
                   "\r\nContent-Length: ", page.body.size(),
                   "\r\nCache-Control: no-store\r\nConnection: close\r\n");
  if (page.allow != nullptr) absl::StrAppend(&head, "Allow: ", page.allow, "\r\n");
  absl::StrAppend(&head, "\r\n");
  if (with_body) head += page.body;
  mg_write(connection, head.data(), head.size());
}

constexpr std::chrono::milliseconds kKnockInterval{5};

// Connects and hangs up.
void Knock(const std::string& host, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return;
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) == 1) {
    static_cast<void>(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address));
  }
  close(fd);
}

bool FromThisHost(const mg_request_info& request) {
  return std::strncmp(request.remote_addr, "127.", 4) == 0;
}

Page LogLevelPage(mg_connection* connection, const mg_request_info& request) {
  Page page;
  if (std::strcmp(request.request_method, "PUT") == 0) {
    if (!FromThisHost(request)) {
      page.code = 403;
      page.body = "only from this host\n";
      return page;
    }
    std::array<char, 16> buffer{};
    const int count = mg_read(connection, buffer.data(), buffer.size());
    const absl::string_view text = absl::StripAsciiWhitespace(
        absl::string_view(buffer.data(), count > 0 ? static_cast<size_t>(count) : 0));
    LogLevel level;
    if (!ParseLogLevel(std::string_view(text.data(), text.size()), &level)) {
      page.code = 400;
      page.body = absl::StrCat("not one of ", std::string(kLogLevelNames), "\n");
      return page;
    }
    SetLogLevel(level);
    Log(LogLevel::kWarn, "log level changed", {{"to", Name(level)}});
  }
  page.body = absl::StrCat(std::string(Name(GetLogLevel())), "\n");
  return page;
}

}  // namespace

struct HttpHandlers {
  static Page Route(const HttpPages& pages, mg_connection* connection,
                    const mg_request_info& request) {
    const std::string_view path = request.local_uri == nullptr ? "" : request.local_uri;
    const std::string_view method = request.request_method;
    Page page;
    const bool reads = method == "GET" || method == "HEAD";
    if (path == "/log-level") {
      if (reads || method == "PUT") return LogLevelPage(connection, request);
      page.code = 405;
      page.allow = "GET, HEAD, PUT";
      return page;
    }
    if (path != "/metrics" && path != "/livez" && path != "/readyz" && path != "/version") {
      page.code = 404;
      page.body = "try /metrics, /livez, /readyz, /version or /log-level\n";
      return page;
    }
    if (!reads) {
      page.code = 405;
      page.allow = "GET, HEAD";
      return page;
    }
    if (path == "/metrics") {
      page.content_type = "text/plain; version=0.0.4; charset=utf-8";
      page.body = pages.metrics();
    } else if (path == "/version") {
      page.content_type = "application/json";
      page.body = pages.version;
    } else {
      const bool good = path == "/livez" ? pages.live() : pages.ready();
      page.code = good ? 200 : 503;
      page.body = good ? "ok\n" : path == "/livez" ? "not live\n" : "not ready\n";
    }
    return page;
  }

  // civetweb is C: nothing may be thrown through it.
  static int Handle(mg_connection* connection, void* data) noexcept {
    const HttpServer* const server = static_cast<const HttpServer*>(data);
    const mg_request_info* const request = mg_get_request_info(connection);
    Page page;
    try {
      page = Route(server->pages_, connection, *request);
    } catch (const std::exception&) {
      page = Page{500, "text/plain; charset=utf-8", "", nullptr};
    }
    Send(connection, page, std::strcmp(request->request_method, "HEAD") != 0);
    return page.code;
  }

  // What civetweb has to say, bind errors above all, is not for stderr.
  static int OnMessage(const mg_connection*, const char* message) {
    Log(LogLevel::kDebug, "http", {{"detail", message}});
    return 1;
  }
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpOptions& options,
                                                              HttpPages pages) {
  const std::vector<std::string> parts = absl::StrSplit(options.listen, ':');
  int port;
  if (parts.size() != 2 || parts[0].empty() || !absl::SimpleAtoi(parts[1], &port) || port < 0 ||
      port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--http-listen: \"", options.listen, "\" is not an IPv4 host:port such as 127.0.0.1:9464"));
  }
  // civetweb wants an address, not a name.
  const std::string host = parts[0] == "localhost" ? "127.0.0.1" : parts[0];
  const std::string address = absl::StrCat(host, ":", port);
  const std::string threads = std::to_string(options.threads);
  const std::string timeout = std::to_string(options.request_timeout.count());
  const char* const settings[] = {"listening_ports",
                                  address.c_str(),
                                  "num_threads",
                                  threads.c_str(),
                                  "request_timeout_ms",
                                  timeout.c_str(),
                                  "enable_keep_alive",
                                  "no",
                                  "enable_directory_listing",
                                  "no",
                                  nullptr};
  mg_init_library(0);
  std::unique_ptr<HttpServer> server(new HttpServer(std::move(pages), host));
  mg_callbacks callbacks{};
  callbacks.log_message = &HttpHandlers::OnMessage;
  server->context_ = mg_start(&callbacks, nullptr, const_cast<const char**>(settings));
  if (server->context_ == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot listen on ", options.listen,
                                               " for HTTP: the address is taken or not of this "
                                               "host"));
  }
  mg_set_request_handler(server->context_, "/", &HttpHandlers::Handle, server.get());
  mg_server_port bound{};
  if (mg_get_server_ports(server->context_, 1, &bound) == 1) server->port_ = bound.port;
  return server;
}

HttpServer::~HttpServer() {
  if (context_ == nullptr) return;
  // civetweb looks at its flag once in two seconds, or when somebody connects.
  std::jthread waker([this](const std::stop_token& stopped) {
    while (!stopped.stop_requested()) {
      Knock(host_, port_);
      std::this_thread::sleep_for(kKnockInterval);
    }
  });
  mg_stop(context_);
}

}  // namespace attend
