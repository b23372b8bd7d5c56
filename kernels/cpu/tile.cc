#include "kernels/cpu/tile.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "kernels/cpu/tile_rows.h"

namespace attend::cpu {
namespace {

constexpr float kInfinity = __builtin_inff();
constexpr float kLog2e = 1.44269504f;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t RoundUp(int64_t a, int64_t b) { return CeilDiv(a, b) * b; }

static_assert(static_cast<int>(DType::kF32) == kStorageF32 &&
              static_cast<int>(DType::kF16) == kStorageF16 &&
              static_cast<int>(DType::kBF16) == kStorageBF16);

const std::byte* At(const TensorView& view, int64_t row, int64_t head) {
  return static_cast<const std::byte*>(view.data) +
         (row * view.row_stride + head * view.head_stride) * ByteSize(view.dtype);
}

bool FoldsScale(const AttentionTask& task) {
  if (task.softcap > 0 || !task.bias.absent() || !task.alibi_slopes.absent()) return false;
  const float folded = std::fabs(task.softmax_scale) * kLog2e;
  return folded == 0 || (folded >= kMinFoldedScale && folded <= kMaxFoldedScale);
}

void Fetch(const FetchRows& rows) {
  for (int row = 0; row < rows.rows; ++row) {
    const char* data = static_cast<const char*>(rows.data) + row * rows.stride;
    for (int i = 0; i < rows.bytes; i += kCacheLine) __builtin_prefetch(data + i, 0, kIntoL2);
  }
  asm volatile("");  // or GCC takes this for a function without effect and drops its calls
}

}  // namespace

PlanRule PlanRuleOf(const KernelTable& table) {
  PlanRule rule;
  rule.tile_rows = kTileRows;
  rule.key_block = table.key_block;
  rule.pack_rows = kPackRows;
  rule.enough_items = kEnoughItems;
  rule.min_chunk_keys = kMinChunkKeys;
  return rule;
}

void SetRows(const TaskPlan& plan, int64_t index, Tile* tile) {
  // Without the product rows * index, which may not fit.
  const int64_t least = plan.rows / plan.row_tiles;
  const int64_t longer = plan.rows % plan.row_tiles;
  tile->row_begin = least * index + std::min(index, longer);
  tile->row_end = tile->row_begin + least + (index < longer ? 1 : 0);
}

Strips StripsOf(const KernelTable& table, int rows) {
  return {rows, static_cast<int>(CeilDiv(rows, table.strip_rows))};
}

int64_t PaddedColumns(const KernelTable& table, int64_t columns) {
  return RoundUp(columns, table.panel);
}

bool TileScratch::Reserve(const KernelTable& table, int64_t head_dim, int64_t head_dim_v) {
  constexpr int64_t kLine = 2 * kCacheLine / static_cast<int64_t>(sizeof(float));
  const int64_t depth = RoundUp(head_dim, kStreamAlignment);
  const int64_t columns = PaddedColumns(table, head_dim_v);
  const int64_t queries = RoundUp(kMaxTileRows * depth + table.lanes, kLine);
  const int64_t keys = table.key_block * depth;
  const int64_t values = table.key_block * columns;
  const int64_t scores = RoundUp(table.strip_rows * (table.key_block + kScorePadding), kLine);
  if (!buffer_.Reserve(queries + 2 * (keys + values) + scores + kMaxTileRows * columns))
    return false;
  queries_ = buffer_.data();
  packed_[0] = {queries_ + queries, queries_ + queries + keys};
  packed_[1] = {packed_[0].values + values, packed_[0].values + values + keys};
  scores_ = packed_[1].values + values;
  o_ = scores_ + scores;
  return true;
}

// The steps of ComputeTile.
class TileComputation {
 public:
  TileComputation(const KernelTable& table, const AttentionTask& task, const TaskPlan& plan,
                  const Tile& tile, TileScratch* scratch, const TileState& state)
      : table_(table),
        kernels_(table.dtypes[static_cast<int>(task.dtype())]),
        task_(task),
        plan_(plan),
        tile_(tile),
        rows_(task, plan, tile.head),
        scratch_(*scratch),
        state_(state),
        strips_(StripsOf(table, tile.rows())),
        streams_(strips_.count <= kStreamStrips),
        folds_scale_(FoldsScale(task)),
        stream_stride_(static_cast<int>(RoundUp(task.head_dim(), kStreamAlignment))),
        depth_(static_cast<int>(streams_ ? task.head_dim()
                                         : CeilDiv(task.head_dim(), kernels_.pack))) {}

  // `finishes`: writes the outputs of each strip as soon as its last keys are in.
  void Run(bool finishes) {
    FindVisibleKeys();
    if (first_key_ < last_key_) {
      if (streams_) {
        Stream();
      } else {
        Pack(finishes);
      }
    }
    if (finishes && !finished_) FinishTile(table_, task_, plan_, tile_, state_);
  }

 private:
  void FindVisibleKeys() {
    first_key_ = tile_.key_end;
    last_key_ = tile_.key_begin;
    for (int r = 0; r < tile_.rows(); ++r) {
      const KeyRange range =
          VisibleKeys(task_.mask, rows_.query(tile_.row_begin + r), task_.seqlen_q, task_.seqlen_k);
      const int64_t begin = std::max(range.begin, tile_.key_begin);
      const int64_t end = std::max(begin, std::min(range.end, tile_.key_end));
      scratch_.visible_begin_[r] = begin;
      scratch_.visible_end_[r] = end;
      state_.maximum[r] = -kInfinity;
      state_.sum[r] = 0;
      if (begin < end) {
        first_key_ = std::min(first_key_, begin);
        last_key_ = std::max(last_key_, end);
      }
    }
    std::fill_n(scratch_.started_, strips_.count, false);
  }

  void Stream() {
    for (int strip = 0; strip < strips_.count; ++strip) PackQueries(strip);
    for (int64_t block = FirstBlock(); block < last_key_; block += table_.key_block) {
      for (int strip = 0; strip < strips_.count; ++strip) RunStrip(strip, block, {});
    }
  }

  // While the strips pass over one block of packed keys, they fetch what comes next and pack the
  // next block, a share after each strip: otherwise most of the packing is waiting for memory.
  void Pack(bool finishes) {
    int64_t block = FirstBlock();
    PackWholeBlock(block);
    Fetch(QueriesOf(0));
    for (bool first = true; block < last_key_; block += table_.key_block, first = false) {
      const int64_t next = block + table_.key_block;
      const bool last = next >= last_key_;
      for (int strip = 0; strip < strips_.count; ++strip) {
        FetchRows fetches[kMostFetches];
        int count = 0;
        if (first && strip + 1 < strips_.count) fetches[count++] = QueriesOf(strip + 1);
        if (last && finishes) fetches[count++] = OutputsOf(strip);
        if (!last) {
          const RowRange share = {Fetched(next, strip), Fetched(next, strip + 1)};
          fetches[count++] = RowsOf(task_.k, next, share);
          fetches[count++] = RowsOf(task_.v, next, share);
        }
        if (first) PackQueries(strip);
        RunStrip(strip, block, {fetches, static_cast<size_t>(count)});
        if (!last) PackRows(next, {Packed(next, strip), Packed(next, strip + 1)});
        if (last && finishes) FinishStrip(table_, task_, plan_, tile_, strip, state_);
      }
    }
    finished_ = finishes;
  }

  int64_t FirstBlock() const { return first_key_ / table_.key_block * table_.key_block; }

  void PackQueries(int strip) {
    const int begin = strips_.begin(strip);
    const void* pointers[kMaxStripRows];
    PackQueriesArgs args;
    args.rows = pointers;
    args.count = strips_.begin(strip + 1) - begin;
    args.head_dim = static_cast<int>(task_.head_dim());
    const bool scaled = folds_scale_ && (streams_ || kernels_.pack == 1);
    args.scale = scaled ? task_.softmax_scale * kLog2e : 1.0f;
    args.out = Queries(begin);
    for (int r = 0; r < args.count; ++r) {
      const int64_t row = tile_.row_begin + begin + r;
      pointers[r] = At(task_.q, rows_.query(row), rows_.head(row));
    }
    if (streams_) {
      kernels_.stream_queries(args, stream_stride_);
    } else {
      kernels_.pack_queries(args);
    }
  }

  // Rows of a block, relative to it.
  struct RowRange {
    int begin;
    int end;
  };

  // What of a block any row of the tile sees, from a whole panel on.
  RowRange Seen(int64_t block) const {
    const int panel = static_cast<int>(std::max(first_key_ - block, int64_t{0})) / table_.panel;
    return {panel * table_.panel,
            static_cast<int>(std::min<int64_t>(last_key_ - block, table_.key_block))};
  }
  // Where the rows end that have been fetched, and packed, before `strip`.
  int Fetched(int64_t block, int strip) const {
    const RowRange seen = Seen(block);
    return seen.begin + static_cast<int>(int64_t{seen.end - seen.begin} * strip / strips_.count);
  }
  int Packed(int64_t block, int strip) const {
    const int fetched = Fetched(block, strip);
    return strip == strips_.count ? fetched : fetched / table_.panel * table_.panel;
  }

  FetchRows RowsOf(const TensorView& view, int64_t block, RowRange rows) const {
    const auto element = ByteSize(view.dtype);
    return {At(view, block + rows.begin, rows_.kv_head()), view.row_stride * element,
            static_cast<int>(view.columns * element), rows.end - rows.begin};
  }
  FetchRows QueriesOf(int strip) const { return RowsOfStrip(task_.q, strip); }
  FetchRows OutputsOf(int strip) const { return RowsOfStrip(task_.o, strip); }
  // None where rows run over heads: those few are close together.
  FetchRows RowsOfStrip(const TensorView& view, int strip) const {
    const int64_t row = tile_.row_begin + strips_.begin(strip);
    const auto element = ByteSize(view.dtype);
    return {At(view, rows_.query(row), rows_.head(row)), view.row_stride * element,
            static_cast<int>(view.columns * element),
            plan_.packed ? 0 : strips_.begin(strip + 1) - strips_.begin(strip)};
  }

  void PackWholeBlock(int64_t block) {
    const RowRange seen = Seen(block);
    const auto fetch = [&](int begin) {
      const RowRange rows = {std::min(begin, seen.end), std::min(begin + table_.panel, seen.end)};
      Fetch(RowsOf(task_.k, block, rows));
      Fetch(RowsOf(task_.v, block, rows));
    };
    fetch(seen.begin);
    for (int begin = seen.begin; begin < seen.end; begin += table_.panel) {
      fetch(begin + table_.panel);
      PackRows(block, {begin, std::min(begin + table_.panel, seen.end)});
    }
  }

  void PackRows(int64_t block, RowRange rows) {
    if (rows.begin == rows.end) return;
    const TileScratch::PackedBlock& packed = PackedBlock(block);
    PackRowsArgs args;
    args.begin = rows.begin;
    args.end = rows.end;
    args.data = At(task_.k, block, rows_.kv_head());
    args.stride = task_.k.row_stride;
    args.columns = static_cast<int>(task_.head_dim());
    args.out = packed.keys;
    kernels_.pack_keys(args);
    args.data = At(task_.v, block, rows_.kv_head());
    args.stride = task_.v.row_stride;
    args.columns = static_cast<int>(task_.head_dim_v());
    args.out = packed.values;
    kernels_.pack_values(args);
  }

  const TileScratch::PackedBlock& PackedBlock(int64_t block) const {
    return scratch_.packed_[block / table_.key_block % 2];
  }

  void RunStrip(int strip, int64_t block, absl::Span<const FetchRows> fetches) {
    const int first = strips_.begin(strip);
    StripArgs args;
    args.rows = strips_.begin(strip + 1) - first;
    int begins[kMaxStripRows];
    int ends[kMaxStripRows];
    args.row_begin = begins;
    args.row_end = ends;
    if (!ClipToBlock(first, block, begins, ends, &args)) return;
    args.columns = static_cast<int>(task_.head_dim_v());
    args.depth = depth_;
    args.q = Queries(first);
    args.stream_stride = stream_stride_;
    if (streams_) {
      args.k = At(task_.k, block, rows_.kv_head());
      args.v = At(task_.v, block, rows_.kv_head());
    } else {
      args.k = PackedBlock(block).keys;
      args.v = PackedBlock(block).values;
    }
    args.k_stride = task_.k.row_stride;
    args.v_stride = task_.v.row_stride;
    args.block_keys = static_cast<int>(std::min<int64_t>(task_.seqlen_k - block, table_.key_block));
    args.post_scale = folds_scale_ ? task_.softmax_scale * kLog2e : 1.0f;
    args.first = !scratch_.started_[strip];
    scratch_.started_[strip] = true;
    args.maximum = state_.maximum + first;
    args.sum = state_.sum + first;
    args.o = state_.o + first * PaddedColumns(table_, task_.head_dim_v());
    args.scores = scratch_.scores_;
    args.fetches = fetches.data();
    args.fetch_count = static_cast<int>(fetches.size());

    ScoreOptions options;
    float slopes[kMaxStripRows];
    float positions[kMaxStripRows];
    const void* bias[kMaxStripRows];
    args.options = nullptr;
    if (!folds_scale_) {
      SetOptions(first, args.rows, block, slopes, positions, bias, &options);
      args.options = &options;
    }
    if (streams_) {
      kernels_.stream_strip(args);
    } else {
      kernels_.strip(args);
    }
  }

  // Visible keys of the strip's rows relative to `block`; false when there are none in it.
  bool ClipToBlock(int first, int64_t block, int* begins, int* ends, StripArgs* args) const {
    const int64_t size = table_.key_block;
    args->begin = table_.key_block;
    args->end = 0;
    for (int r = 0; r < args->rows; ++r) {
      begins[r] = static_cast<int>(
          std::clamp(scratch_.visible_begin_[first + r] - block, int64_t{0}, size));
      ends[r] =
          static_cast<int>(std::clamp(scratch_.visible_end_[first + r] - block, int64_t{0}, size));
      if (begins[r] >= ends[r]) continue;
      args->begin = std::min(args->begin, begins[r]);
      args->end = std::max(args->end, ends[r]);
    }
    return args->begin < args->end;
  }

  void SetOptions(int first, int rows, int64_t block, float* slopes, float* positions,
                  const void** bias, ScoreOptions* options) const {
    options->scale = task_.softmax_scale;
    options->softcap = task_.softcap;
    options->slopes = task_.alibi_slopes.absent() ? nullptr : slopes;
    options->positions = positions;
    options->bias = task_.bias.absent() ? nullptr : bias;
    options->bias_type = static_cast<StorageIndex>(task_.bias.dtype);
    for (int r = 0; r < rows; ++r) {
      const int64_t row = tile_.row_begin + first + r;
      const int64_t query = rows_.query(row);
      const int64_t head = rows_.head(row);
      if (options->slopes != nullptr) {
        slopes[r] = task_.alibi_slopes.data[head];
        positions[r] = static_cast<float>(query + task_.seqlen_k - task_.seqlen_q - block);
      }
      if (options->bias != nullptr) {
        const int64_t offset =
            head * task_.bias.head_stride + query * task_.bias.row_stride + block;
        bias[r] =
            static_cast<const std::byte*>(task_.bias.data) + offset * ByteSize(task_.bias.dtype);
      }
    }
  }

  float* Queries(int first_row) const {
    return scratch_.queries_ + int64_t{first_row} * (streams_ ? stream_stride_ : depth_);
  }

  const KernelTable& table_;
  const DTypeKernels& kernels_;
  const AttentionTask& task_;
  const TaskPlan& plan_;
  const Tile& tile_;
  const TileRows rows_;
  TileScratch& scratch_;
  const TileState& state_;
  const Strips strips_;
  const bool streams_;
  const bool folds_scale_;
  const int stream_stride_;
  const int depth_;
  int64_t first_key_ = 0;  // of any row
  int64_t last_key_ = 0;
  bool finished_ = false;
};

void ComputeTile(const KernelTable& table, const AttentionTask& task, const TaskPlan& plan,
                 const Tile& tile, TileScratch* scratch, const TileState& state) {
  TileComputation(table, task, plan, tile, scratch, state).Run(/*finishes=*/false);
}

void RunTile(const KernelTable& table, const AttentionTask& task, const TaskPlan& plan,
             const Tile& tile, TileScratch* scratch) {
  TileComputation(table, task, plan, tile, scratch, scratch->state()).Run(/*finishes=*/true);
}

}  // namespace attend::cpu
