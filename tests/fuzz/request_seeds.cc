#include "tests/fuzz/request_seeds.h"

#include "absl/strings/str_cat.h"
#include "tests/testing/attend_request.h"

namespace attend::testing {

std::vector<std::string> RequestSeeds() {
  Random random(1);
  std::vector<v1::AttendRequest> requests;
  RequestShape shape;
  shape.rows_q = 2, shape.rows_k = 3, shape.head_dim = shape.head_dim_v = 2;
  requests.push_back(MakeRequest(shape, &random));
  requests.back().set_request_id("seed");
  requests.back().set_causal(true);
  requests.back().set_softmax_scale(0.5f);
  requests.back().set_softcap(30);
  requests.back().mutable_window()->set_left(1);
  requests.back().mutable_window()->set_right(0);
  requests.back().set_return_lse(true);
  requests.back().set_priority(v1::PRIORITY_HIGH);
  *requests.back().mutable_sinks() = RandomTensor(v1::DATA_TYPE_FP32, {2}, &random);
  *requests.back().mutable_alibi_slopes() = RandomTensor(v1::DATA_TYPE_FP32, {2}, &random);
  *requests.back().mutable_bias() = RandomTensor(v1::DATA_TYPE_FP32, {2, 1, 3}, &random);

  shape.batch = 2, shape.data_type = v1::DATA_TYPE_BF16, shape.heads_q = 4;
  requests.push_back(MakeRequest(shape, &random));
  for (int64_t length : {2, 0}) requests.back().add_q_lens(length);
  for (int64_t length : {1, 3}) requests.back().add_kv_lens(length);
  *requests.back().mutable_bias() = RandomTensor(v1::DATA_TYPE_BF16, {1, 4, 2, 3}, &random);
  requests.back().set_return_lse(true);

  shape.batch = 0, shape.rows_q = 4, shape.rows_k = 5, shape.data_type = v1::DATA_TYPE_FP16;
  requests.push_back(MakeRequest(shape, &random));
  for (int64_t offset : {0, 1, 1, 4}) requests.back().add_cu_seqlens_q(offset);
  for (int64_t offset : {0, 0, 2, 5}) requests.back().add_cu_seqlens_k(offset);
  requests.back().set_return_lse(true);

  std::vector<std::string> seeds;
  for (const v1::AttendRequest& request : requests) {
    seeds.push_back(absl::StrCat("\x06", request.SerializeAsString()));
    v1::AttendStreamRequest stream;
    stream.set_id(7);
    stream.set_timeout_seconds(1.5);
    *stream.mutable_attend() = request;
    seeds.push_back(absl::StrCat("\x05", stream.SerializeAsString()));
  }
  v1::AttendStreamRequest cancel;
  cancel.set_id(7);
  cancel.mutable_cancel();
  seeds.push_back(absl::StrCat("\x81", cancel.SerializeAsString()));
  return seeds;
}

}  // namespace attend::testing
