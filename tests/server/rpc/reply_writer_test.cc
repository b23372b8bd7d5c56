#include "server/rpc/reply_writer.h"

#include <gtest/gtest.h>

#include <vector>

#include "grpcpp/support/slice.h"

namespace attend {
namespace {

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

DecodedRequest Layout(size_t o_bytes, bool lse) {
  DecodedRequest request;
  request.dtype = DType::kBF16;
  request.o = {true, 256, o_bytes, {static_cast<int64_t>(o_bytes / 4), 1, 2}};
  if (lse) request.lse = {true, 0, 12, {1, 3}};
  return request;
}

// The generated parser reads back what was written by hand, for sizes around each length of
// varints.
TEST(ReplyWriterTest, GeneratedParserReadsIt) {
  std::string staging(300000, '\0');
  for (size_t i = 0; i < staging.size(); ++i) staging[i] = static_cast<char>(i * 7);
  std::byte* const base = reinterpret_cast<std::byte*>(staging.data());
  v1::AttendResponse head;
  head.set_request_id("abc");
  head.mutable_stats()->set_batch_requests(3);
  for (const size_t bytes : {0, 4, 100, 120, 124, 128, 132, 16300, 16384, 16400, 262144}) {
    for (const bool lse : {false, true}) {
      for (const bool stream : {false, true}) {
        const DecodedRequest layout = Layout(bytes, lse);
        const std::string wire =
            BytesOf(WriteReply(head, layout, base, std::make_shared<int>(0),
                               stream ? std::optional<uint64_t>(uint64_t{1} << 63) : std::nullopt));
        v1::AttendResponse reply;
        if (stream) {
          v1::AttendStreamResponse envelope;
          ASSERT_TRUE(envelope.ParseFromString(wire));
          EXPECT_EQ(envelope.id(), uint64_t{1} << 63);
          reply = envelope.attend();
        } else {
          ASSERT_TRUE(reply.ParseFromString(wire));
        }
        EXPECT_EQ(reply.request_id(), "abc");
        EXPECT_EQ(reply.stats().batch_requests(), 3);
        EXPECT_EQ(reply.o().inline_(), staging.substr(256, bytes));
        EXPECT_EQ(reply.o().data_type(), v1::DATA_TYPE_BF16);
        ASSERT_EQ(reply.o().shape_size(), 3);
        EXPECT_EQ(reply.has_lse(), lse);
        if (lse) {
          EXPECT_EQ(reply.lse().inline_(), staging.substr(0, 12));
          EXPECT_EQ(reply.lse().data_type(), v1::DATA_TYPE_FP32);
        }
      }
    }
  }
}

TEST(ReplyWriterTest, MemoryIsHeldUntilTheBufferIsGone) {
  std::string staging(1000, 'x');
  auto alive = std::make_shared<int>(0);
  const std::weak_ptr<int> watch = alive;
  {
    grpc::ByteBuffer buffer =
        WriteReply({}, Layout(512, true), reinterpret_cast<std::byte*>(staging.data()),
                   std::move(alive), std::nullopt);
    grpc::ByteBuffer copy = buffer;
    buffer.Clear();
    EXPECT_FALSE(watch.expired());
  }
  EXPECT_TRUE(watch.expired());
}

}  // namespace
}  // namespace attend
