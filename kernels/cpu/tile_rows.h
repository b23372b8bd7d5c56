// Which query and head a row of a tile is.

#ifndef ATTEND_KERNELS_CPU_TILE_ROWS_H_
#define ATTEND_KERNELS_CPU_TILE_ROWS_H_

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/plan.h"

namespace attend::cpu {

class TileRows {
 public:
  TileRows(const AttentionTask& task, const TaskPlan& plan, int64_t head)
      : group_(task.heads_q() / task.heads_k()), packed_(plan.packed), head_(head) {}

  int64_t query(int64_t row) const { return packed_ ? row / group_ : row; }
  int64_t head(int64_t row) const { return packed_ ? head_ * group_ + row % group_ : head_; }
  int64_t kv_head() const { return packed_ ? head_ : head_ / group_; }

 private:
  int64_t group_;
  bool packed_;
  int64_t head_;
};

}  // namespace attend::cpu

#endif  // ATTEND_KERNELS_CPU_TILE_ROWS_H_
