// The HTTP port: /metrics, /livez, /readyz, /version and /log-level.
//
// GET and HEAD; PUT of a level's name to /log-level from this host alone. Plain HTTP and IPv4 only
// (the library's TLS is not to be trusted): bind it to loopback or to an address that only the
// monitoring reaches.

#ifndef ATTEND_SERVER_OPS_HTTP_SERVER_H_
#define ATTEND_SERVER_OPS_HTTP_SERVER_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "server/ops/options.h"

struct mg_context;

namespace attend {

// What the pages show. Called from HTTP threads, concurrently.
struct HttpPages {
  std::function<std::string()> metrics;
  std::function<bool()> live;   // false: this process should be restarted
  std::function<bool()> ready;  // false: send it no work
  std::string version;          // a JSON object
};

class HttpServer {
 public:
  // UNAVAILABLE when the address is taken, INVALID_ARGUMENT when it is no IPv4 host:port.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpOptions& options,
                                                           HttpPages pages);
  // Ends when its handlers have.
  ~HttpServer();

  int port() const { return port_; }

 private:
  HttpServer(HttpPages pages, std::string host)
      : pages_(std::move(pages)), host_(std::move(host)) {}

  const HttpPages pages_;
  const std::string host_;
  mg_context* context_ = nullptr;
  int port_ = 0;

  friend struct HttpHandlers;
};

}  // namespace attend

#endif  // ATTEND_SERVER_OPS_HTTP_SERVER_H_
