#include "tests/testing/server_process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "tests/testing/server_fixture.h"

namespace attend::testing {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return std::string((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
}

std::string MakeDirectory() {
  std::string path = ::testing::TempDir() + "/attend-XXXXXX";
  return mkdtemp(path.data()) == nullptr ? std::string() : path;
}

}  // namespace

Process::Process(const std::vector<std::string>& command,
                 const std::vector<std::string>& environment)
    : directory_(MakeDirectory()) {
  std::vector<char*> argv;
  for (const std::string& arg : command) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  const std::string out = directory_ + "/stdout", err = directory_ + "/stderr";
  pid_ = fork();
  if (pid_ != 0) return;
  // The child: only calls that are safe after fork.
  for (const auto& [path, fd] : {std::pair(&out, 1), {&err, 2}}) {
    const int file = open(path->c_str(), O_CREAT | O_WRONLY | O_TRUNC, 0600);
    if (file < 0 || dup2(file, fd) < 0) _exit(126);
  }
  for (const std::string& variable : environment) putenv(const_cast<char*>(variable.c_str()));
  execvp(argv[0], argv.data());
  _exit(127);
}

Process::~Process() {
  if (Running()) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  for (const char* name : {"/stdout", "/stderr"}) unlink((directory_ + name).c_str());
  rmdir(directory_.c_str());
}

void Process::Signal(int signal) const { kill(pid_, signal); }

bool Process::Running() {
  if (exit_code_ || pid_ < 0) return false;
  int status;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return true;
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return false;
}

std::optional<int> Process::Wait() {
  for (int i = 0; i < 2 && !Eventually([this] { return !Running(); }); ++i) {
  }
  return exit_code_;
}

std::string Process::Stdout() const { return ReadFile(directory_ + "/stdout"); }
std::string Process::Stderr() const { return ReadFile(directory_ + "/stderr"); }

std::string ServerBinary() {
  const char* path = std::getenv("ATTEND_SERVER");
  return path != nullptr ? path : ATTEND_SERVER_BINARY;
}

ServerProcess::ServerProcess(std::vector<std::string> args,
                             const std::vector<std::string>& environment) {
  static int count = 0;
  port_file_ = absl::StrCat(::testing::TempDir(), "/attend-ports-", getpid(), "-", ++count);
  unlink(port_file_.c_str());
  std::vector<std::string> command = {ServerBinary(), "--backend=reference", "--listen=127.0.0.1:0",
                                      "--http-listen=127.0.0.1:0", "--port-file=" + port_file_};
  command.insert(command.end(), args.begin(), args.end());
  process_ = std::make_unique<Process>(command, environment);
  const bool ready = Eventually([&] {
    std::ifstream file(port_file_);
    std::string name;
    return !process_->Running() ||
           static_cast<bool>(file >> name >> grpc_port_ >> name >> http_port_);
  });
  if (!ready || !process_->Running()) {
    ADD_FAILURE() << "the server did not start: " << process_->Stderr();
  }
}

ServerProcess::~ServerProcess() { unlink(port_file_.c_str()); }

std::shared_ptr<grpc::Channel> ServerProcess::Connect() const {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetMaxReceiveMessageSize(-1);
  return grpc::CreateCustomChannel(absl::StrCat("127.0.0.1:", grpc_port_),
                                   grpc::InsecureChannelCredentials(), arguments);
}

std::unique_ptr<v1::AttentionService::Stub> ServerProcess::Stub() const {
  return v1::AttentionService::NewStub(Connect());
}

std::optional<double> ServerProcess::Metric(const std::string& series) const {
  return MetricOf(http_port_, series);
}

std::optional<int> ServerProcess::Terminate() {
  process_->Signal(SIGTERM);
  return process_->Wait();
}

}  // namespace attend::testing
