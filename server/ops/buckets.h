// Upper bounds of the histograms. A latency objective should be one of them.

#ifndef ATTEND_SERVER_OPS_BUCKETS_H_
#define ATTEND_SERVER_OPS_BUCKETS_H_

#include "prometheus/histogram.h"

namespace attend {

// Requests, stages and queueing, seconds: 100 us to 30 s, three a decade.
inline prometheus::Histogram::BucketBoundaries RequestSeconds() {
  return {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
          0.1,    0.25,    0.5,    1,     2.5,    5,     10,   30};
}

// Kernels and device copies, seconds: 5 us to 2.5 s.
inline prometheus::Histogram::BucketBoundaries KernelSeconds() {
  return {0.000005, 0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025,
          0.005,    0.01,    0.025,    0.05,    0.1,    0.25,    0.5,    1,     2.5};
}

inline prometheus::Histogram::BucketBoundaries BatchSizes() {
  return {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024};
}

// Query rows of a batch.
inline prometheus::Histogram::BucketBoundaries BatchTokens() {
  return {1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,
          2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};
}

}  // namespace attend

#endif  // ATTEND_SERVER_OPS_BUCKETS_H_
