#include "server/rpc/connection_table.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

namespace attend {
namespace {

sockaddr_storage Peer(const char* text) {
  sockaddr_storage peer{};
  auto& v4 = reinterpret_cast<sockaddr_in&>(peer);
  auto& v6 = reinterpret_cast<sockaddr_in6&>(peer);
  if (inet_pton(AF_INET, text, &v4.sin_addr) == 1) {
    peer.ss_family = AF_INET;
  } else if (inet_pton(AF_INET6, text, &v6.sin6_addr) == 1) {
    peer.ss_family = AF_INET6;
  }
  return peer;
}

TEST(ConnectionTableTest, LimitsEachAddressAndAll) {
  ConnectionTable table(5, 2);
  EXPECT_EQ(table.Admit("a"), std::nullopt);
  EXPECT_EQ(table.Admit("a"), std::nullopt);
  EXPECT_EQ(table.Admit("a"), ConnectionLimit::kAddress);
  EXPECT_EQ(table.Admit("b"), std::nullopt);
  EXPECT_EQ(table.Admit("c"), std::nullopt);
  EXPECT_EQ(table.Admit("d"), std::nullopt);
  EXPECT_EQ(table.Admit("e"), ConnectionLimit::kTotal);
  EXPECT_EQ(table.open(), 5);
  table.Release("a");
  EXPECT_EQ(table.Admit("b"), std::nullopt);
  table.Release("b");
  EXPECT_EQ(table.Admit("a"), std::nullopt);
}

TEST(ConnectionTableTest, CountsBackToNothing) {
  ConnectionTable table(0, 1);
  for (int i = 0; i < 100; ++i) {
    const std::string client = std::to_string(i);
    EXPECT_EQ(table.Admit(client), std::nullopt);
    EXPECT_EQ(table.Admit(client), ConnectionLimit::kAddress);
  }
  for (int i = 0; i < 100; ++i) table.Release(std::to_string(i));
  EXPECT_EQ(table.open(), 0);
  EXPECT_EQ(table.Admit("5"), std::nullopt);
}

TEST(ConnectionTableTest, ZeroMeansNoLimit) {
  ConnectionTable table(0, 0);
  for (int i = 0; i < 10000; ++i) EXPECT_EQ(table.Admit("a"), std::nullopt);
}

TEST(ConnectionTableTest, PeersAreNamedAsGrpcDoes) {
  EXPECT_EQ(PeerName(Peer("192.0.2.7")), "ipv4:192.0.2.7:0");
  EXPECT_EQ(PeerName(Peer("::ffff:192.0.2.7")), "ipv4:192.0.2.7:0");
  EXPECT_EQ(PeerName(Peer("2001:db8::9")), "ipv6:%5B2001:db8::9%5D:0");
}

TEST(ConnectionTableTest, ClientsAreIpv4AddressesOrIpv6Networks) {
  EXPECT_EQ(ConnectionClient(Peer("192.0.2.7")), "192.0.2.7");
  EXPECT_EQ(ConnectionClient(Peer("::ffff:192.0.2.7")), "192.0.2.7");
  EXPECT_EQ(ConnectionClient(Peer("::1")), "::1");
  EXPECT_EQ(ConnectionClient(Peer("2001:db8:1:2:3:4:5:6")), "2001:db8:1:2::/64");
  EXPECT_EQ(ConnectionClient(Peer("2001:db8:1:2::9")), "2001:db8:1:2::/64");
  EXPECT_NE(ConnectionClient(Peer("2001:db8:1:3::9")), "2001:db8:1:2::/64");
  EXPECT_EQ(ConnectionClient(sockaddr_storage{}), "unknown");
}

}  // namespace
}  // namespace attend
