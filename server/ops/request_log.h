// One line for each refused request or connection (and for answered ones when asked for), sampled
// under floods.

#ifndef ATTEND_SERVER_OPS_REQUEST_LOG_H_
#define ATTEND_SERVER_OPS_REQUEST_LOG_H_

#include "server/ops/log_sampler.h"
#include "server/ops/options.h"
#include "server/rpc/rpc_observer.h"

namespace attend {

// Thread-safe.
class RequestLog {
 public:
  explicit RequestLog(const LogOptions& options);
  void Write(const RequestRecord& record);
  void Unauthenticated();
  void RefusedConnection(ConnectionLimit limit, const std::string& client);

 private:
  const bool log_answered_;
  LogSampler refused_;
  LogSampler answered_;
};

}  // namespace attend

#endif  // ATTEND_SERVER_OPS_REQUEST_LOG_H_
