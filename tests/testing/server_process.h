// attend-server as a process of its own: started, talked to by signals, waited for.

#ifndef ATTEND_TESTS_TESTING_SERVER_PROCESS_H_
#define ATTEND_TESTS_TESTING_SERVER_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "attend/v1/attention.grpc.pb.h"
#include "grpcpp/grpcpp.h"

namespace attend::testing {

// Any program, with its output in files.
class Process {
 public:
  // `program` by path or from PATH. `environment` is added to that of the test.
  explicit Process(const std::vector<std::string>& command,
                   const std::vector<std::string>& environment = {});
  // Kills what still runs.
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) const;
  // The exit code, or 128 + the signal that ended it. nullopt when it still runs after a minute.
  std::optional<int> Wait();
  bool Running();
  std::string Stdout() const;
  std::string Stderr() const;

 private:
  pid_t pid_ = -1;
  std::optional<int> exit_code_;
  std::string directory_;
};

// Where the server's binary is: $ATTEND_SERVER, or beside the build that made the test.
std::string ServerBinary();

class ServerProcess {
 public:
  // On free ports, with a cheap backend unless `args` say otherwise. Returns when it is ready; a
  // failed start is the test's failure.
  explicit ServerProcess(std::vector<std::string> args = {},
                         const std::vector<std::string>& environment = {});
  ~ServerProcess();  // removes the port file

  Process& process() { return *process_; }
  int grpc_port() const { return grpc_port_; }
  int http_port() const { return http_port_; }
  std::unique_ptr<v1::AttentionService::Stub> Stub() const;
  std::shared_ptr<grpc::Channel> Connect() const;
  std::optional<double> Metric(const std::string& series) const;
  // SIGTERM, then the exit code.
  std::optional<int> Terminate();

 private:
  std::unique_ptr<Process> process_;
  std::string port_file_;
  int grpc_port_ = 0;
  int http_port_ = 0;
};

}  // namespace attend::testing

#endif  // ATTEND_TESTS_TESTING_SERVER_PROCESS_H_
