// Requests as clients send them, and judgement of the replies by the oracle.
//
// The cutting of a request into sequences is written here again, from the wire contract: it shares
// no code with the server's codec.

#ifndef ATTEND_TESTS_TESTING_ATTEND_REQUEST_H_
#define ATTEND_TESTS_TESTING_ATTEND_REQUEST_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "attend/v1/attention.pb.h"
#include "tests/testing/random.h"

namespace attend::testing {

struct RequestShape {
  int64_t batch = 0;  // 0: one sequence, three dimensions
  int64_t rows_q = 5;
  int64_t rows_k = 7;
  int64_t heads_q = 2;
  int64_t heads_k = 2;
  int64_t head_dim = 8;
  int64_t head_dim_v = 8;
  v1::DataType data_type = v1::DATA_TYPE_FP32;
};

// A tensor of random numbers, mean 0 and deviation 1.
v1::Tensor RandomTensor(v1::DataType data_type, const std::vector<int64_t>& shape, Random* random);

// q, k and v of the shape; no options.
v1::AttendRequest MakeRequest(const RequestShape& shape, Random* random);

// Whether `reply` answers `request`: shapes, types, and every element within the contract's bounds.
::testing::AssertionResult Answers(const v1::AttendRequest& request,
                                   const v1::AttendResponse& reply);

}  // namespace attend::testing

#endif  // ATTEND_TESTS_TESTING_ATTEND_REQUEST_H_
