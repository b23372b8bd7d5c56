// What the codec makes of right requests: tasks and their layout in staging.

#include "server/rpc/request_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/errors.h"
#include "tests/server/rpc/decode_request.h"
#include "tests/testing/attend_request.h"

namespace attend {
namespace {

using testing::Decode;
using testing::MakeRequest;
using testing::One;
using testing::Padded;
using testing::Ragged;
using testing::Random;
using testing::RandomTensor;
using testing::RequestShape;
using v1::AttendRequest;

TEST(RequestCodecTest, DefaultsOfOneSequence) {
  const absl::StatusOr<DecodedRequest> decoded = Decode(One());
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  ASSERT_EQ(decoded->tasks.size(), 1u);
  const AttentionTask& task = decoded->tasks[0];
  EXPECT_FLOAT_EQ(task.softmax_scale, 1 / std::sqrt(8.0f));
  EXPECT_EQ(task.softcap, 0);
  EXPECT_FALSE(task.mask.causal);
  EXPECT_FALSE(task.mask.window_left.has_value());
  EXPECT_FALSE(task.mask.window_right.has_value());
  EXPECT_TRUE(task.lse.absent());
  EXPECT_TRUE(task.bias.absent());
  EXPECT_TRUE(task.sinks.absent());
  EXPECT_TRUE(task.alibi_slopes.absent());
  EXPECT_EQ(task.seqlen_q, 5);
  EXPECT_EQ(task.seqlen_k, 7);
  EXPECT_EQ(decoded->priority, Priority::kNormal);
  EXPECT_EQ(decoded->query_tokens, 5);
  EXPECT_EQ(decoded->kv_tokens, 7);
  EXPECT_EQ(decoded->padding_tokens, 0);
  EXPECT_THAT(decoded->o.shape, ::testing::ElementsAre(5, 2, 8));
}

TEST(RequestCodecTest, PresenceIsNotZero) {
  AttendRequest request = One();
  request.set_softmax_scale(0);
  request.mutable_window()->set_left(0);
  const absl::StatusOr<DecodedRequest> decoded = Decode(request);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->tasks[0].softmax_scale, 0);
  EXPECT_EQ(decoded->tasks[0].mask.window_left, std::optional<int64_t>(0));
  EXPECT_FALSE(decoded->tasks[0].mask.window_right.has_value());
}

TEST(RequestCodecTest, LargestWindowIsValid) {
  AttendRequest request = One();
  request.mutable_window()->set_left(INT64_MAX);
  request.mutable_window()->set_right(INT64_MAX);
  EXPECT_TRUE(Decode(request).ok());
}

TEST(RequestCodecTest, RequestIdOf128Characters) {
  AttendRequest request = One();
  request.set_request_id(std::string(128, '~'));
  EXPECT_TRUE(Decode(request).ok());
}

TEST(RequestCodecTest, RaggedTasksPointIntoSharedTensors) {
  AttendRequest request = Ragged();
  request.set_return_lse(true);
  absl::StatusOr<DecodedRequest> decoded = Decode(request);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  // The middle sequence has no query row: nothing to compute for it.
  ASSERT_EQ(decoded->tasks.size(), 2u);
  EXPECT_EQ(decoded->sequences, 3);
  std::vector<std::byte> staging(decoded->staging_bytes);
  PlaceTasks(&*decoded, staging.data(), MemoryKind::kPinned);
  const auto offset = [&](const void* p) {
    return static_cast<const std::byte*>(p) - staging.data();
  };
  const auto [first, last] = std::pair(decoded->tasks[0], decoded->tasks[1]);
  EXPECT_EQ(first.q.rows, 2);
  EXPECT_EQ(first.k.rows, 0);
  EXPECT_EQ(last.q.rows, 3);
  EXPECT_EQ(last.k.rows, 4);
  EXPECT_EQ(offset(last.q.data) - offset(first.q.data), 2 * 2 * 8 * 4);
  EXPECT_EQ(offset(last.k.data) - offset(first.k.data), 3 * 2 * 8 * 4);
  EXPECT_EQ(offset(last.o.data) - offset(first.o.data), 2 * 2 * 8 * 4);
  EXPECT_EQ(offset(last.lse.data) - offset(first.lse.data), 2 * 4);
  EXPECT_EQ(first.lse.head_stride, 5);
  EXPECT_EQ(last.q.memory, MemoryKind::kPinned);
  EXPECT_THAT(decoded->lse.shape, ::testing::ElementsAre(2, 5));
}

TEST(RequestCodecTest, EmptySequencesNeedNoTask) {
  for (int64_t batch : {0, 3}) {
    Random random(4);
    RequestShape shape;
    shape.batch = batch;
    shape.rows_q = 0;
    const absl::StatusOr<DecodedRequest> decoded = Decode(MakeRequest(shape, &random));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_TRUE(decoded->tasks.empty());
    EXPECT_EQ(decoded->o.bytes, 0u);
  }
}

TEST(RequestCodecTest, NoKeysIsAnAnswer) {
  Random random(4);
  RequestShape shape;
  shape.rows_k = 0;
  const absl::StatusOr<DecodedRequest> decoded = Decode(MakeRequest(shape, &random));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->tasks.size(), 1u);
}

TEST(RequestCodecTest, BatchOfNoSequences) {
  AttendRequest request = Padded();
  for (v1::Tensor* tensor : {request.mutable_q(), request.mutable_k(), request.mutable_v()}) {
    tensor->set_shape(0, 0);
    tensor->set_inline_("");
  }
  const absl::StatusOr<DecodedRequest> decoded = Decode(request);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_TRUE(decoded->tasks.empty());
  request.mutable_k()->set_shape(3, 4);  // and is still judged
  EXPECT_FALSE(Decode(request).ok());
}

TEST(RequestCodecTest, SequencesAreLimitedAndPaidFor) {
  AttendRequest request = One();
  for (v1::Tensor* tensor : {request.mutable_q(), request.mutable_k(), request.mutable_v()}) {
    tensor->set_shape(0, 0);
    tensor->set_inline_("");
  }
  for (int i = 0; i <= 1000; ++i) {
    request.add_cu_seqlens_q(0);
    request.add_cu_seqlens_k(0);
  }
  CodecLimits limits;
  limits.max_sequences = 1000;
  absl::StatusOr<DecodedRequest> decoded = Decode(request, limits);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_GE(decoded->staging_bytes, 1000 * sizeof(AttentionTask));
  limits.max_sequences = 999;
  decoded = Decode(request, limits);
  ASSERT_FALSE(decoded.ok());
  EXPECT_EQ(FieldOf(decoded.status()), "cu_seqlens_q");
  EXPECT_EQ(ReasonOf(decoded.status()), "TOO_LARGE");
}

TEST(RequestCodecTest, HeaderIsLimited) {
  AttendRequest request = One();
  for (int i = 0; i < 2000; ++i) request.add_q_lens(1);
  CodecLimits limits;
  limits.max_header_bytes = 1000;
  const absl::StatusOr<DecodedRequest> decoded = Decode(request, limits);
  EXPECT_EQ(decoded.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ReasonOf(decoded.status()), "TOO_LARGE");
}

TEST(RequestCodecTest, BiasBroadcasts) {
  Random random(4);
  const struct {
    std::vector<int64_t> shape;
    int64_t head_stride, row_stride, sequence_bytes;
  } rows[] = {{{2, 2, 5, 7}, 35, 7, 280},
              {{1, 2, 5, 7}, 35, 7, 0},
              {{2, 1, 5, 7}, 0, 7, 140},
              {{2, 2, 1, 7}, 7, 0, 56},
              {{1, 1, 1, 7}, 0, 0, 0}};
  for (const auto& row : rows) {
    AttendRequest request = Padded();
    *request.mutable_bias() = RandomTensor(v1::DATA_TYPE_FP32, row.shape, &random);
    const absl::StatusOr<DecodedRequest> decoded = Decode(request);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    const BiasView &first = decoded->tasks[0].bias, &second = decoded->tasks[1].bias;
    EXPECT_EQ(first.head_stride, row.head_stride);
    EXPECT_EQ(first.row_stride, row.row_stride);
    EXPECT_EQ(static_cast<const char*>(second.data) - static_cast<const char*>(first.data),
              row.sequence_bytes);
  }
}

}  // namespace
}  // namespace attend
