// attend info: what a server is and what it accepts.

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/command.h"
#include "cli/json.h"

namespace attend::cli {
namespace {

std::vector<std::string> TypeNames(const client::ServerInfo& info) {
  std::vector<std::string> names;
  for (const client::DataType type : info.data_types) names.emplace_back(client::Name(type));
  return names;
}

void PrintText(const client::ServerInfo& info) {
  std::printf("version     %s\nbackend     %s\n", info.version.c_str(), info.backend.c_str());
  for (const client::ServerDevice& device : info.devices) {
    std::printf("device %d    %s (%s, %s)", device.ordinal, device.name.c_str(),
                device.backend.c_str(), device.architecture.c_str());
    if (device.memory_bytes > 0) {
      std::printf(", %.1f GiB, may use %.1f GiB",
                  static_cast<double>(device.memory_bytes) / (1 << 30),
                  static_cast<double>(device.memory_limit_bytes) / (1 << 30));
    }
    std::printf("\n");
  }
  std::printf("data types  %s\n", absl::StrJoin(TypeNames(info), ", ").c_str());
  std::printf("options     %s\n", absl::StrJoin(info.features, ", ").c_str());
  const client::ServerLimits& limits = info.limits;
  std::printf(
      "limits      message %.0f MiB, in flight %lld requests and %.0f MiB, one client %.0f %%, "
      "head dimension %lld\n",
      static_cast<double>(limits.max_receive_message_bytes) / (1 << 20),
      static_cast<long long>(limits.max_in_flight_requests),
      static_cast<double>(limits.max_in_flight_bytes) / (1 << 20), limits.client_share * 100,
      static_cast<long long>(limits.max_head_dim));
}

void PrintJson(const client::ServerInfo& info) {
  JsonWriter json;
  json.BeginObject();
  json.Field("version", info.version);
  json.Field("backend", info.backend);
  json.BeginArray("devices");
  for (const client::ServerDevice& device : info.devices) {
    json.BeginObject();
    json.Field("ordinal", device.ordinal);
    json.Field("backend", device.backend);
    json.Field("name", device.name);
    json.Field("architecture", device.architecture);
    json.Field("memory_bytes", device.memory_bytes);
    json.Field("memory_limit_bytes", device.memory_limit_bytes);
    json.EndObject();
  }
  json.EndArray();
  json.BeginObject("limits");
  json.Field("max_receive_message_bytes", info.limits.max_receive_message_bytes);
  json.Field("max_in_flight_requests", info.limits.max_in_flight_requests);
  json.Field("max_in_flight_bytes", info.limits.max_in_flight_bytes);
  json.Field("client_share", info.limits.client_share);
  json.Field("max_head_dim", info.limits.max_head_dim);
  json.EndObject();
  json.BeginArray("data_types");
  for (const std::string& name : TypeNames(info)) json.Element(name);
  json.EndArray();
  json.BeginArray("features");
  for (const std::string& name : info.features) json.Element(name);
  json.EndArray();
  json.EndObject();
  std::printf("%s\n", json.text().c_str());
}

}  // namespace

int InfoCommand(absl::Span<char* const> arguments) {
  ConnectionFlags connection;
  connection.options.channels = 1;
  std::chrono::nanoseconds timeout = std::chrono::seconds(5);
  std::string output = "text";
  FlagSet flags("attend info", "Shows what a server is and what it accepts.");
  flags.Group("Output");
  flags.Add("output", &output, "text|json", "form of the answer on standard output");
  flags.Group("Connection");
  flags.Add("addr", &connection.address, "HOST:PORT", "server; unix:/path for a Unix socket",
            "ATTEND_ADDR");
  flags.Add("timeout", &timeout, "TIME", "for the connection and the answer");
  connection.AddSecurityTo(flags);
  if (auto exit = ParseOrExit(flags, arguments)) return *exit;
  if (output != "text" && output != "json") {
    return Fail(kExitUsage, "--output: is text or json");
  }

  auto client = connection.MakeClient();
  if (!client.ok()) return Fail(kExitUsage, Describe(client.status()));
  const absl::StatusOr<client::ServerInfo> info = (*client)->GetServerInfo(timeout);
  if (!info.ok()) {
    return Fail(kExitFailure, absl::StrCat(connection.address, ": ", Describe(info.status())));
  }
  if (output == "json") {
    PrintJson(*info);
  } else {
    PrintText(*info);
  }
  return kExitOk;
}

}  // namespace attend::cli
