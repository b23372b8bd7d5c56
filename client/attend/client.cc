#include "attend/client.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <random>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "attend/internal/buffer_pool.h"
#include "attend/internal/call_state.h"
#include "attend/internal/channel_pool.h"
#include "attend/internal/control_calls.h"
#include "attend/internal/transport.h"

namespace attend::client {
namespace {

// Beyond this a timeout is no timeout, and clock arithmetic stays far from its ends.
constexpr std::chrono::nanoseconds kLongestTimeout = std::chrono::hours(24 * 365);

// Unique enough to find one request in a log: 64 bits of chance.
std::string MakeRequestId() {
  thread_local std::mt19937_64 generator{(uint64_t{std::random_device{}()} << 32) ^
                                         std::random_device{}()};
  return absl::StrFormat("c-%016x", generator());
}

}  // namespace

class ClientImpl {
 public:
  static absl::StatusOr<std::shared_ptr<ClientImpl>> Create(const std::string& target,
                                                            const ClientOptions& options) {
    absl::StatusOr<std::unique_ptr<ChannelPool>> channels = ChannelPool::Create(target, options);
    if (!channels.ok()) return channels.status();
    return std::make_shared<ClientImpl>(*std::move(channels), options);
  }

  ClientImpl(std::unique_ptr<ChannelPool> channels, const ClientOptions& options)
      : options_(options),
        channels_(std::move(channels)),
        transport_(MakeTransport(options, channels_.get())) {}

  ~ClientImpl() {
    std::vector<std::shared_ptr<CallState>> running;
    {
      std::lock_guard lock(mutex_);
      for (auto& [call, owner] : calls_) running.push_back(owner);
    }
    for (const std::shared_ptr<CallState>& call : running) call->Cancel();
    std::unique_lock lock(mutex_);
    all_ended_.wait(lock, [this] { return calls_.empty(); });
  }

  Call Start(const AttendInputs& inputs, const AttendOptions& options, Client::Callback done) {
    const std::string id = options.request_id.empty() ? MakeRequestId() : options.request_id;
    absl::StatusOr<EncodedRequest> request = EncodedRequest::Make(inputs, options, id);
    if (!request.ok()) {
      ErrorDetails details = DetailsOf(request.status());
      details.request_id = id;
      const absl::string_view message = request.status().message();
      done(MakeStatus(request.status().code(), {message.data(), message.size()}, details));
      return Call();
    }
    const auto timeout =
        std::min(options.timeout.value_or(options_.default_timeout), kLongestTimeout);
    auto call =
        std::make_shared<CallState>(transport_.get(), &options_.retry, *std::move(request),
                                    Destinations{options.o_destination, options.lse_destination},
                                    id, std::chrono::steady_clock::now() + timeout, std::move(done),
                                    [this](CallState* ended) { OnEnded(ended); });
    {
      std::lock_guard lock(mutex_);
      calls_.emplace(call.get(), call);
    }
    call->Start();
    return Call(call);
  }

  ChannelPool& channels() { return *channels_; }

 private:
  static std::unique_ptr<Transport> MakeTransport(const ClientOptions& options,
                                                  ChannelPool* channels) {
    auto buffers = std::make_shared<BufferPool>(static_cast<size_t>(options.idle_buffer_bytes));
    return options.mode == CallMode::kStream ? MakeStreamTransport(channels, std::move(buffers))
                                             : MakeUnaryTransport(channels, std::move(buffers));
  }

  void OnEnded(CallState* call) {
    std::lock_guard lock(mutex_);
    calls_.erase(call);
    if (calls_.empty()) all_ended_.notify_all();
  }

  const ClientOptions options_;
  const std::unique_ptr<ChannelPool> channels_;
  const std::unique_ptr<Transport> transport_;  // ends before the channels

  std::mutex mutex_;
  std::condition_variable all_ended_;
  std::unordered_map<CallState*, std::shared_ptr<CallState>> calls_;  // guarded by mutex_
};

void Call::Cancel() const {
  if (const std::shared_ptr<CallState> state = state_.lock()) state->Cancel();
}

absl::StatusOr<std::unique_ptr<Client>> Client::Create(const std::string& target,
                                                       const ClientOptions& options) {
  absl::StatusOr<std::shared_ptr<ClientImpl>> impl = ClientImpl::Create(target, options);
  if (!impl.ok()) return impl.status();
  return std::unique_ptr<Client>(new Client(*std::move(impl)));
}

Client::Client(std::shared_ptr<ClientImpl> impl) : impl_(std::move(impl)) {}
Client::~Client() = default;

Call Client::AttendAsync(const AttendInputs& inputs, const AttendOptions& options, Callback done) {
  return impl_->Start(inputs, options, std::move(done));
}

std::future<absl::StatusOr<AttendResult>> Client::AttendFuture(const AttendInputs& inputs,
                                                               const AttendOptions& options) {
  auto promise = std::make_shared<std::promise<absl::StatusOr<AttendResult>>>();
  std::future<absl::StatusOr<AttendResult>> future = promise->get_future();
  impl_->Start(inputs, options, [promise](absl::StatusOr<AttendResult> result) {
    promise->set_value(std::move(result));
  });
  return future;
}

absl::StatusOr<AttendResult> Client::Attend(const AttendInputs& inputs,
                                            const AttendOptions& options) {
  return AttendFuture(inputs, options).get();
}

absl::Status Client::Connect(std::chrono::nanoseconds timeout) {
  return WaitConnected(impl_->channels(), timeout);
}

absl::StatusOr<ServerInfo> Client::GetServerInfo(std::chrono::nanoseconds timeout) {
  return CallGetServerInfo(impl_->channels(), timeout);
}

absl::StatusOr<HealthState> Client::CheckHealth(const std::string& service,
                                                std::chrono::nanoseconds timeout) {
  return CallHealthCheck(impl_->channels(), service, timeout);
}

}  // namespace attend::client
