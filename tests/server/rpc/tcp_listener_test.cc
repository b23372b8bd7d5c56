#include "server/rpc/tcp_listener.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/engine/mutex.h"
#include "tests/testing/raw_connection.h"
#include "tests/testing/server_fixture.h"

namespace attend {
namespace {

using testing::Eventually;
using testing::RawConnection;

constexpr int64_t kUnfinishedBytes = 1 << 20;

class CountingObserver : public RpcObserver {
 public:
  void OnConnectionStart() override { ++started; }
  void OnConnectionEnd() override { ++ended; }
  void OnConnectionRefused(ConnectionLimit limit, const std::string&) override {
    if (limit == ConnectionLimit::kMemory) ++hoarders;
  }

  std::atomic<int> started{0}, ended{0}, hoarders{0};
};

// In place of gRPC: keeps what it is given, and reads and closes when it is told to.
class TcpListenerTest : public ::testing::Test {
 protected:
  TcpListenerTest() {
    listener_->Start(ConnectionTable(0, 0), kUnfinishedBytes, &observer_, &ledger_,
                     [this](int, int fd) {
                       MutexLock lock(mutex_);
                       given_.emplace_back(fd);
                     });
  }
  ~TcpListenerTest() override { listener_.reset(); }  // before what its thread uses

  // Returns once the connection has been given to the handler.
  RawConnection Connect() {
    const size_t before = given();
    RawConnection connection(listener_->port());
    EXPECT_TRUE(Eventually([&] { return given() == before + 1; }));
    return connection;
  }
  size_t given() {
    MutexLock lock(mutex_);
    return given_.size();
  }
  int Fd(size_t i) {
    MutexLock lock(mutex_);
    return given_[i].get();
  }
  void Close(size_t i) {
    MutexLock lock(mutex_);
    given_[i] = UniqueFd();
  }
  // Reads what comes by the connection until `bytes` have, or its end.
  void Read(size_t i, size_t bytes) {
    std::array<char, 65536> buffer;
    Eventually([&] {
      const ssize_t got = recv(Fd(i), buffer.data(), std::min(buffer.size(), bytes), MSG_DONTWAIT);
      if (got > 0) bytes -= static_cast<size_t>(got);
      return got == 0 || bytes == 0;
    });
  }
  void SendAndRead(RawConnection* connection, size_t i, size_t bytes) {
    std::thread reader([&] { Read(i, bytes); });
    connection->Send(std::string(bytes, 'x'));
    reader.join();
  }

  CountingObserver observer_;
  ConnectionLedger ledger_;
  Mutex mutex_;
  std::vector<UniqueFd> given_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<TcpListener> listener_ = *TcpListener::Open("127.0.0.1:0");
};

// gRPC closes its descriptor some time after the connection has ended.
TEST_F(TcpListenerTest, AnEndedConnectionThatIsStillOpenEndsNoOther) {
  UniqueFd spare(dup(STDIN_FILENO));
  { RawConnection first = Connect(); }
  shutdown(Fd(0), SHUT_RDWR);
  ASSERT_TRUE(Eventually([&] { return observer_.ended == 1; }));
  // Three numbers are free: the listener's descriptor of the next connection gets that of the
  // first.
  spare = UniqueFd();
  std::vector<RawConnection> others;
  for (int i = 0; i < 10; ++i) others.push_back(Connect());  // the thread looks for each
  EXPECT_EQ(observer_.started, 11);
  EXPECT_EQ(observer_.ended, 1);
}

TEST_F(TcpListenerTest, TheConnectionThatBroughtMostWithoutAMessageIsEnded) {
  RawConnection modest = Connect(), hoarder = Connect();
  SendAndRead(&modest, 0, kUnfinishedBytes / 2);
  SendAndRead(&hoarder, 1, kUnfinishedBytes);  // or until its end
  EXPECT_TRUE(hoarder.WaitForEnd());
  EXPECT_EQ(observer_.hoarders, 1);
  EXPECT_TRUE(Eventually([&] { return observer_.ended == 1; }));
  EXPECT_FALSE(modest.Closed());
}

// Else it may wait for room as long as the kernel remembers the socket.
TEST_F(TcpListenerTest, AnEndedHoarderIsToldThatNothingMoreIsTaken) {
  RawConnection hoarder = Connect();
  SendAndRead(&hoarder, 0, 2 * kUnfinishedBytes);
  ASSERT_TRUE(hoarder.WaitForEnd());
  ASSERT_TRUE(Eventually([&] { return observer_.ended == 1; }));
  Read(0, 2 * kUnfinishedBytes);  // to the end: what is unread would be told of in any case
  EXPECT_FALSE(hoarder.Reset());
  Close(0);
  EXPECT_TRUE(Eventually([&] { return hoarder.Reset(); }));
}

}  // namespace
}  // namespace attend
