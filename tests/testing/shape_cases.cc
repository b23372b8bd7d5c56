#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/testing/case_rows.h"
#include "tests/testing/case_table.h"

namespace attend::testing {
namespace {

constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
constexpr int64_t kInt64Max = std::numeric_limits<int64_t>::max();

void AddShapes(Cases& cases) {
  Add(cases, "one_by_one", {.seqlen_q = 1, .seqlen_k = 1});
  Add(cases, "square_64", {.seqlen_q = 64, .seqlen_k = 64});
  Add(cases, "square_127", {.seqlen_q = 127, .seqlen_k = 127, .head_dim = 128});
  Add(cases, "ugly_113_203", {.seqlen_q = 113, .seqlen_k = 203});
  Add(cases, "ugly_203_113", {.seqlen_q = 203, .seqlen_k = 113, .head_dim = 128});
  Add(cases, "row_of_257_keys", {.seqlen_q = 1, .seqlen_k = 257});
  Add(cases, "257_rows_of_one_key", {.seqlen_q = 257, .seqlen_k = 1});
  for (const auto& [q, k] : {std::pair<int64_t, int64_t>{15, 17},
                             {16, 31},
                             {17, 33},
                             {31, 65},
                             {33, 63},
                             {63, 64},
                             {64, 65},
                             {65, 128},
                             {95, 96},
                             {97, 127},
                             {128, 129},
                             {129, 191},
                             {192, 193},
                             {255, 257}}) {
    Add(cases, absl::StrCat("edge_", q, "_", k),
        {.seqlen_q = q, .seqlen_k = k, .heads_q = 1, .heads_k = 1});
  }
  Add(cases, "long_causal",
      {.seqlen_q = Scaled(1024),
       .seqlen_k = Scaled(1024),
       .heads_q = 1,
       .heads_k = 1,
       .mask = Causal()});
  Add(cases, "long_dense",
      {.seqlen_q = 70, .seqlen_k = Scaled(3000), .heads_q = 1, .heads_k = 1, .head_dim = 128});
  Add(cases, "no_rows", {.seqlen_q = 0, .seqlen_k = 20});
  Add(cases, "no_keys", {.seqlen_q = 20, .seqlen_k = 0});
  Add(cases, "nothing", {.seqlen_q = 0, .seqlen_k = 0});
  Add(cases, "no_keys_causal", {.seqlen_q = 7, .seqlen_k = 0, .mask = Causal()});
}

void AddHeads(Cases& cases) {
  for (const int64_t d :
       {1,  2,  3,  5,  7,   8,   9,   15,  16,  17,  24,  31,  32,  33,  40,  48, 63,
        65, 72, 80, 96, 100, 112, 127, 128, 129, 144, 160, 192, 200, 224, 255, 256}) {
    Add(cases, absl::StrCat("head_dim_", d),
        {.seqlen_q = 67, .seqlen_k = 83, .heads_q = 2, .heads_k = 1, .head_dim = d});
  }
  for (const auto& [d, v] : {std::pair<int64_t, int64_t>{64, 128},
                             {128, 64},
                             {192, 128},
                             {1, 256},
                             {256, 1},
                             {33, 100},
                             {100, 33},
                             {64, 65},
                             {255, 256},
                             {16, 8}}) {
    Add(cases, absl::StrCat("head_dims_", d, "_", v),
        {.seqlen_q = 50, .seqlen_k = 75, .head_dim = d, .head_dim_v = v, .mask = Causal()});
  }
  Add(cases, "gqa_8_2", {.seqlen_q = 70, .seqlen_k = 90, .heads_q = 8, .heads_k = 2});
  Add(cases, "gqa_6_2",
      {.seqlen_q = 70,
       .seqlen_k = 90,
       .heads_q = 6,
       .heads_k = 2,
       .head_dim = 128,
       .mask = Causal()});
  Add(cases, "gqa_9_3", {.seqlen_q = 33, .seqlen_k = 20, .heads_q = 9, .heads_k = 3});
  Add(cases, "mqa_8_1",
      {.seqlen_q = 60, .seqlen_k = 60, .heads_q = 8, .heads_k = 1, .mask = Causal()});
  Add(cases, "mqa_5_1", {.seqlen_q = 3, .seqlen_k = 200, .heads_q = 5, .heads_k = 1});
  Add(cases, "heads_32",
      {.seqlen_q = 9, .seqlen_k = 11, .heads_q = 32, .heads_k = 32, .head_dim = 32});
}

void AddMasks(Cases& cases) {
  Add(cases, "causal", {.seqlen_q = 150, .seqlen_k = 150, .mask = Causal()});
  Add(cases, "causal_more_keys", {.seqlen_q = 60, .seqlen_k = 211, .mask = Causal()});
  Add(cases, "causal_fewer_keys", {.seqlen_q = 211, .seqlen_k = 60, .mask = Causal()});
  Add(cases, "causal_one_key", {.seqlen_q = 100, .seqlen_k = 1, .mask = Causal()});
  Add(cases, "causal_one_row", {.seqlen_q = 1, .seqlen_k = 100, .mask = Causal()});
  const struct {
    const char* name;
    MaskSpec mask;
  } windows[] = {
      {"left_0", Window(0, std::nullopt)},
      {"right_0", Window(std::nullopt, 0)},
      {"0_0", Window(0, 0)},
      {"left_16", Window(16, std::nullopt)},
      {"right_16", Window(std::nullopt, 16)},
      {"3_5", Window(3, 5)},
      {"70_64", Window(70, 64)},
      {"left_int32_max", Window(kInt32Max, std::nullopt)},
      {"right_int32_max", Window(std::nullopt, kInt32Max)},
      {"0_int32_max", Window(0, kInt32Max)},
      {"int32_max_0", Window(kInt32Max, 0)},
      {"int64_max", Window(kInt64Max, kInt64Max)},
      {"left_int64_max_right_1", Window(kInt64Max, 1)},
      {"causal_left_20", Window(20, std::nullopt, true)},
      {"causal_left_0", Window(0, std::nullopt, true)},
      {"causal_right_9", Window(std::nullopt, 9, true)},
      {"causal_130_int32_max", Window(130, kInt32Max, true)},
  };
  for (const auto& [name, mask] : windows) {
    Add(cases, absl::StrCat("window_", name),
        {.seqlen_q = 140, .seqlen_k = 150, .heads_q = 2, .heads_k = 1, .mask = mask});
  }
  // More rows than keys: the first rows stand before the first key.
  Add(cases, "window_fewer_keys", {.seqlen_q = 200, .seqlen_k = 70, .mask = Window(10, 20)});
  Add(cases, "window_left_fewer_keys",
      {.seqlen_q = 130, .seqlen_k = 40, .mask = Window(5, std::nullopt)});
  Add(cases, "window_right_fewer_keys",
      {.seqlen_q = 130, .seqlen_k = 40, .mask = Window(std::nullopt, 5)});
  Add(cases, "window_more_keys", {.seqlen_q = 70, .seqlen_k = 400, .mask = Window(30, 0)});
}

void AddPadding(Cases& cases) {
  Add(cases, "padded_both", {.seqlen_q = 45, .seqlen_k = 77, .padding_q = 21, .padding_k = 30});
  Add(cases, "padded_causal",
      {.seqlen_q = 64, .seqlen_k = 64, .mask = Causal(), .padding_q = 64, .padding_k = 64});
  Add(cases, "padded_no_rows", {.seqlen_q = 0, .seqlen_k = 30, .padding_q = 40});
  Add(cases, "padded_no_keys", {.seqlen_q = 30, .seqlen_k = 0, .padding_k = 40});
  Add(cases, "padded_nothing", {.seqlen_q = 0, .seqlen_k = 0, .padding_q = 8, .padding_k = 8});
  Add(cases, "padded_sinks",
      {.seqlen_q = 10,
       .seqlen_k = 0,
       .heads_q = 4,
       .heads_k = 4,
       .sinks = Sinks::kExtreme,
       .padding_q = 5,
       .padding_k = 5});
  Add(cases, "padded_bias",
      {.seqlen_q = 33, .seqlen_k = 50, .bias = BiasSpec{}, .padding_q = 10, .padding_k = 14});
  Add(cases, "padded_decode",
      {.seqlen_q = 1,
       .seqlen_k = 700,
       .heads_q = 4,
       .heads_k = 1,
       .padding_q = 2,
       .padding_k = 324});
  Add(cases, "row_gaps", {.seqlen_q = 65, .seqlen_k = 80, .layout = Layout::kRowGap});
  Add(cases, "row_gaps_padded",
      {.seqlen_q = 40,
       .seqlen_k = 51,
       .heads_q = 4,
       .heads_k = 2,
       .mask = Causal(),
       .padding_q = 9,
       .padding_k = 3,
       .layout = Layout::kRowGap});
  Add(cases, "head_major",
      {.seqlen_q = 70,
       .seqlen_k = 66,
       .heads_q = 4,
       .heads_k = 2,
       .head_dim = 48,
       .layout = Layout::kHeadMajor});
}

void AddDecode(Cases& cases) {
  Add(cases, "decode_mha", {.seqlen_q = 1, .seqlen_k = Scaled(3000), .head_dim = 128});
  Add(cases, "decode_gqa_8",
      {.seqlen_q = 1, .seqlen_k = Scaled(5001), .heads_q = 8, .heads_k = 1, .head_dim = 128});
  Add(cases, "decode_rows_4_gqa_4",
      {.seqlen_q = 4, .seqlen_k = Scaled(2500), .heads_q = 8, .heads_k = 2, .mask = Causal()});
  Add(cases, "decode_window",
      {.seqlen_q = 1,
       .seqlen_k = Scaled(6000),
       .heads_q = 4,
       .heads_k = 1,
       .mask = Window(Scaled(2000), 0)});
  Add(cases, "decode_softcap",
      {.seqlen_q = 1, .seqlen_k = Scaled(3001), .heads_q = 4, .heads_k = 4, .softcap = 20});
  Add(cases, "decode_head_dim_256",
      {.seqlen_q = 1, .seqlen_k = Scaled(2000), .heads_q = 6, .heads_k = 2, .head_dim = 256});
  Add(cases, "decode_head_dim_80",
      {.seqlen_q = 2,
       .seqlen_k = Scaled(1999),
       .heads_q = 3,
       .heads_k = 1,
       .head_dim = 80,
       .mask = Causal()});
  Add(cases, "few_rows_many_keys",
      {.seqlen_q = 17, .seqlen_k = Scaled(2100), .heads_q = 2, .heads_k = 1, .mask = Causal()});
}

void AddBatches(Cases& cases) {
  Case ragged = {"ragged", {}, true};
  for (const auto& [q, k] : {std::pair<int64_t, int64_t>{70, 70},
                             {1, 300},
                             {0, 5},
                             {33, 0},
                             {129, 65},
                             {1, 1},
                             {0, 0},
                             {64, 128}}) {
    ragged.tasks.push_back(
        {.seqlen_q = q, .seqlen_k = k, .heads_q = 4, .heads_k = 2, .mask = Causal()});
  }
  cases.push_back(ragged);
  ragged.name = "ragged_odd_dims";
  for (TaskSpec& spec : ragged.tasks) {
    spec.head_dim = 37;
    spec.head_dim_v = 51;
    spec.mask = {};
  }
  cases.push_back(ragged);

  Case mixed = {"mixed_batch", {}};
  for (const MaskSpec& mask : {MaskSpec{}, Causal(), Window(9, 3), Window(0, std::nullopt, true)}) {
    for (const int64_t heads : {1, 2, 6}) {
      TaskSpec spec = {.seqlen_q = 20 + 31 * heads,
                       .seqlen_k = 150 - 17 * heads,
                       .heads_q = heads,
                       .heads_k = heads % 2 == 0 ? heads / 2 : heads,
                       .mask = mask};
      spec.scale = 0.1f * static_cast<float>(heads);
      spec.softcap = heads == 2 ? 3.0f : 0.0f;
      spec.alibi = heads == 6;
      spec.sinks = heads == 1 ? Sinks::kNormal : Sinks::kNone;
      if (heads == 2) spec.bias = BiasSpec{.per_head = false};
      spec.lse = !mask.causal;
      mixed.tasks.push_back(spec);
    }
  }
  mixed.tasks.push_back({.seqlen_q = 1, .seqlen_k = Scaled(3000), .heads_q = 8, .heads_k = 2});
  mixed.tasks.push_back({.seqlen_q = 0, .seqlen_k = 9});
  mixed.tasks.push_back({.seqlen_q = 9, .seqlen_k = 0, .sinks = Sinks::kNormal, .padding_q = 3});
  cases.push_back(mixed);

  Case padded = {"padded_batch", {}};
  for (const int64_t rows : {0, 1, 31, 64, 90}) {
    padded.tasks.push_back({.seqlen_q = rows,
                            .seqlen_k = 95 - rows,
                            .head_dim = 128,
                            .mask = Causal(),
                            .padding_q = 90 - rows,
                            .padding_k = rows});
  }
  cases.push_back(padded);

  Case dims = {"many_head_dims_batch", {}};
  for (const int64_t d : {8, 64, 72, 128, 130, 256}) {
    dims.tasks.push_back({.seqlen_q = 30, .seqlen_k = 40, .head_dim = d});
  }
  cases.push_back(dims);
}

}  // namespace

void AddShapeCases(Cases& cases) {
  AddShapes(cases);
  AddHeads(cases);
  AddMasks(cases);
  AddPadding(cases);
  AddDecode(cases);
  AddBatches(cases);
}

}  // namespace attend::testing
