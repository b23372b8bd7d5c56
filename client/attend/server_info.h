// What a server says about itself. Plain values; sizes in bytes; 0 where not applicable.

#ifndef ATTEND_CLIENT_SERVER_INFO_H_
#define ATTEND_CLIENT_SERVER_INFO_H_

#include <cstdint>
#include <string>
#include <vector>

#include "attend/tensor.h"

namespace attend::client {

struct ServerDevice {
  int ordinal = 0;
  std::string backend;
  std::string name;
  std::string architecture;
  int64_t memory_bytes = 0;        // 0 for a CPU
  int64_t memory_limit_bytes = 0;  // 0 for a CPU
};

// Requests past these are refused.
struct ServerLimits {
  int64_t max_receive_message_bytes = 0;
  int64_t max_in_flight_requests = 0;
  int64_t max_in_flight_bytes = 0;
  double client_share = 0;  // of both, for one client
  int64_t max_head_dim = 0;
};

struct ServerInfo {
  std::string version;
  std::string backend;
  std::vector<ServerDevice> devices;
  ServerLimits limits;
  std::vector<DataType> data_types;
  std::vector<std::string> features;  // names of the options it honours: "causal", "window", ...
};

enum class HealthState : uint8_t { kUnknown, kServing, kNotServing, kServiceUnknown };

}  // namespace attend::client

#endif  // ATTEND_CLIENT_SERVER_INFO_H_
