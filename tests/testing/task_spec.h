// A task described by plain numbers: what the case table is made of and Problem builds.

#ifndef ATTEND_TESTS_TESTING_TASK_SPEC_H_
#define ATTEND_TESTS_TESTING_TASK_SPEC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "tests/testing/random.h"

namespace attend::testing {

// How the elements of q, k and v are drawn.
enum class Values : uint8_t {
  kNormal,     // mean 0, deviation 1
  kLarge,      // q and k 16 times larger: scores in the hundreds and thousands
  kHuge,       // scores near 1e36; not for fp16
  kPositive,   // |normal|: all scores far above 0, with kLarge's factor
  kNegative,   // q = |normal|, k = -|normal|, times kLarge's factor: all scores far below 0
  kEqual,      // q = 0: all scores alike
  kSubnormal,  // v of 16-bit subnormals
};

// Where NaN and infinity stand. Padding and the gaps between rows are always NaN.
enum class Trap : uint8_t {
  kNone,
  kHidden,   // in every key that no query of its group sees
  kInKey,    // NaN in one visible k row of each kv head
  kInValue,  // NaN in one visible v row
  kInQuery,  // NaN in one q row
  kInfinityInKey,
  kInfinityInValue,
  kInfinityInQuery,
};

enum class Layout : uint8_t {
  kContiguous,
  kRowGap,     // unused elements after every row
  kHeadMajor,  // [heads, rows, columns]
};

enum class BiasValues : uint8_t {
  kNormal,
  kSomeMasked,    // about a third is -infinity
  kRowsMasked,    // whole rows are -infinity
  kAllMasked,     // everything is -infinity
  kVeryNegative,  // about -10,000 everywhere
  kKeysMasked,    // whole keys are -infinity, in all rows
};

struct BiasSpec {
  bool per_head = true;
  bool per_row = true;
  bool fp32 = true;  // else the inputs' dtype
  BiasValues values = BiasValues::kNormal;
};

enum class Sinks : uint8_t {
  kNone,
  kNormal,
  kExtreme,  // in turn -infinity, 200, -200, 0
};

struct TaskSpec {
  int64_t seqlen_q = 0;
  int64_t seqlen_k = 0;
  int64_t heads_q = 2;
  int64_t heads_k = 2;
  int64_t head_dim = 64;
  int64_t head_dim_v = 0;  // 0: as head_dim
  MaskSpec mask = {};
  std::optional<float> scale = std::nullopt;  // absent: 1 / sqrt(head_dim)
  float softcap = 0;
  std::optional<BiasSpec> bias = std::nullopt;
  bool alibi = false;
  Sinks sinks = Sinks::kNone;
  bool lse = true;
  int64_t padding_q = 0;  // rows after the real ones
  int64_t padding_k = 0;
  Layout layout = Layout::kContiguous;
  Values values = Values::kNormal;
  Trap trap = Trap::kNone;
  DType dtype = DType::kF32;  // set by whoever runs the case
};

struct Case {
  std::string name;  // letters, digits and underscores
  std::vector<TaskSpec> tasks;
  // The sequences lie end to end in shared tensors; all tasks then agree in heads and dimensions
  // and have neither padding nor bias.
  bool ragged = false;
};

// A task of random options and an ugly shape.
TaskSpec RandomTask(Random& random);

// One line that says everything, for failure messages.
std::string Describe(const TaskSpec& spec);

}  // namespace attend::testing

#endif  // ATTEND_TESTS_TESTING_TASK_SPEC_H_
