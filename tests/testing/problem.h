// Tensors for TaskSpecs, in guarded memory: the tasks of a batch, ready to run.

#ifndef ATTEND_TESTS_TESTING_PROBLEM_H_
#define ATTEND_TESTS_TESTING_PROBLEM_H_

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "kernels/attention.h"
#include "tests/testing/guarded_buffer.h"
#include "tests/testing/random.h"
#include "tests/testing/task_spec.h"

namespace attend::testing {

// Owns the memory of its tasks. Everything is drawn from `seed` alone.
class Problem {
 public:
  Problem(const Case& test_case, uint64_t seed);
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  absl::Span<const AttentionTask> tasks() const { return tasks_; }

  // Fills o and lse with poison, gaps included.
  void PoisonOutputs();

  // What was written where nobody may write: guards, gaps between rows, inputs. Empty when all is
  // well.
  std::string Damage() const;

  // The bytes of all outputs, to compare runs bit by bit.
  std::vector<uint8_t> OutputBytes() const;

 private:
  GuardedBuffer& Allocate(int64_t bytes, Random& random);
  TensorView MakeTensor(const TaskSpec& spec, int64_t rows, int64_t heads, int64_t columns,
                        Random& random);
  void BuildSeparate(const TaskSpec& spec, Random& random);
  void BuildRagged(const Case& test_case, Random& random);
  void FillInputs(const TaskSpec& spec, AttentionTask& task, Random& random);
  void AddVectors(const TaskSpec& spec, AttentionTask& task, Random& random);
  void AddBias(const TaskSpec& spec, AttentionTask& task, Random& random);

  std::vector<AttentionTask> tasks_;
  std::deque<GuardedBuffer> buffers_;
  std::vector<size_t> outputs_;  // indices of `buffers_` that tasks write
  uint64_t input_sum_ = 0;       // of every input byte, to see that none changed
};

}  // namespace attend::testing

#endif  // ATTEND_TESTS_TESTING_PROBLEM_H_
