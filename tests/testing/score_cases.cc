#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/testing/case_rows.h"
#include "tests/testing/case_table.h"

namespace attend::testing {
namespace {

void AddScores(Cases& cases) {
  const TaskSpec base = {.seqlen_q = 75, .seqlen_k = 90};
  for (const auto& [name, scale] : {std::pair<const char*, float>{"0", 0.0f},
                                    {"negative", -0.125f},
                                    {"1", 1.0f},
                                    {"50", 50.0f},
                                    {"tiny", 1e-30f}}) {
    TaskSpec spec = base;
    spec.scale = scale;
    Add(cases, absl::StrCat("scale_", name), spec);
  }
  for (const auto& [name, cap] :
       {std::pair<const char*, float>{"1", 1.0f}, {"30", 30.0f}, {"0p01", 0.01f}, {"1e6", 1e6f}}) {
    TaskSpec spec = base;
    spec.softcap = cap;
    Add(cases, absl::StrCat("softcap_", name), spec);
  }
  Add(cases, "softcap_large_logits",
      {.seqlen_q = 60, .seqlen_k = 80, .mask = Causal(), .softcap = 30, .values = Values::kLarge});
  for (const auto& [name, values] : {std::pair<const char*, Values>{"large", Values::kLarge},
                                     {"huge", Values::kHuge},
                                     {"positive", Values::kPositive},
                                     {"negative", Values::kNegative},
                                     {"equal", Values::kEqual},
                                     {"subnormal", Values::kSubnormal}}) {
    TaskSpec spec = base;
    spec.values = values;
    Add(cases, absl::StrCat("logits_", name), spec);
  }
  Add(cases, "logits_negative_causal",
      {.seqlen_q = 140, .seqlen_k = 130, .mask = Causal(), .values = Values::kNegative});
  Add(cases, "logits_large_decode",
      {.seqlen_q = 1,
       .seqlen_k = Scaled(2000),
       .heads_q = 4,
       .heads_k = 1,
       .values = Values::kLarge});
}

void AddBiases(Cases& cases) {
  for (const bool per_head : {false, true}) {
    for (const bool per_row : {false, true}) {
      for (const bool fp32 : {false, true}) {
        TaskSpec spec = {.seqlen_q = 70, .seqlen_k = 85};
        spec.bias = BiasSpec{.per_head = per_head, .per_row = per_row, .fp32 = fp32};
        Add(cases,
            absl::StrCat("bias_", per_head ? "heads" : "1", "_", per_row ? "rows" : "1", "_",
                         fp32 ? "fp32" : "own"),
            spec);
      }
    }
  }
  const struct {
    const char* name;
    BiasValues values;
  } kinds[] = {{"some_masked", BiasValues::kSomeMasked},
               {"rows_masked", BiasValues::kRowsMasked},
               {"all_masked", BiasValues::kAllMasked},
               {"very_negative", BiasValues::kVeryNegative},
               {"keys_masked", BiasValues::kKeysMasked}};
  for (const auto& [name, values] : kinds) {
    TaskSpec spec = {.seqlen_q = 66, .seqlen_k = 133, .heads_q = 4, .heads_k = 2};
    spec.bias = BiasSpec{.values = values};
    Add(cases, absl::StrCat("bias_", name), spec);
    spec.bias->fp32 = false;
    spec.mask = Causal();
    spec.sinks = Sinks::kNormal;
    Add(cases, absl::StrCat("bias_", name, "_causal_sinks_own"), spec);
  }
  Add(cases, "bias_softcap", {.seqlen_q = 40, .seqlen_k = 50, .softcap = 2, .bias = BiasSpec{}});
  Add(cases, "bias_decode",
      {.seqlen_q = 1,
       .seqlen_k = Scaled(2047),
       .heads_q = 8,
       .heads_k = 2,
       .bias = BiasSpec{.values = BiasValues::kSomeMasked}});
  Add(cases, "bias_decode_masked",
      {.seqlen_q = 2,
       .seqlen_k = Scaled(2047),
       .heads_q = 4,
       .heads_k = 1,
       .bias = BiasSpec{.values = BiasValues::kAllMasked},
       .sinks = Sinks::kExtreme});
}

void AddAlibiAndSinks(Cases& cases) {
  Add(cases, "alibi", {.seqlen_q = 90, .seqlen_k = 100, .heads_q = 4, .heads_k = 4, .alibi = true});
  Add(cases, "alibi_causal",
      {.seqlen_q = 130,
       .seqlen_k = 110,
       .heads_q = 8,
       .heads_k = 2,
       .mask = Causal(),
       .alibi = true});
  Add(cases, "alibi_softcap_bias",
      {.seqlen_q = 50,
       .seqlen_k = 70,
       .heads_q = 4,
       .heads_k = 2,
       .softcap = 5,
       .bias = BiasSpec{},
       .alibi = true});
  Add(cases, "alibi_decode",
      {.seqlen_q = 1, .seqlen_k = Scaled(3000), .heads_q = 8, .heads_k = 1, .alibi = true});
  Add(cases, "sinks", {.seqlen_q = 70, .seqlen_k = 80, .sinks = Sinks::kNormal});
  Add(cases, "sinks_scaled",
      {.seqlen_q = 20, .seqlen_k = 30, .scale = 3.0f, .softcap = 2, .sinks = Sinks::kNormal});
  Add(cases, "sinks_extreme",
      {.seqlen_q = 70,
       .seqlen_k = 80,
       .heads_q = 8,
       .heads_k = 4,
       .mask = Causal(),
       .sinks = Sinks::kExtreme});
  Add(cases, "sinks_no_keys",
      {.seqlen_q = 20, .seqlen_k = 0, .heads_q = 4, .heads_k = 4, .sinks = Sinks::kExtreme});
  Add(cases, "sinks_rows_without_keys",
      {.seqlen_q = 150,
       .seqlen_k = 50,
       .heads_q = 4,
       .heads_k = 2,
       .mask = Causal(),
       .sinks = Sinks::kExtreme});
  Add(cases, "sinks_window",
      {.seqlen_q = 100,
       .seqlen_k = 100,
       .heads_q = 4,
       .heads_k = 4,
       .mask = Window(8, 0),
       .sinks = Sinks::kNormal});
  Add(cases, "sinks_decode",
      {.seqlen_q = 1,
       .seqlen_k = Scaled(4000),
       .heads_q = 8,
       .heads_k = 2,
       .sinks = Sinks::kExtreme});
  Add(cases, "sinks_large_logits",
      {.seqlen_q = 40,
       .seqlen_k = 60,
       .heads_q = 4,
       .heads_k = 4,
       .sinks = Sinks::kExtreme,
       .values = Values::kLarge});
  Add(cases, "lse_unwanted", {.seqlen_q = 70, .seqlen_k = 80, .mask = Causal(), .lse = false});
  Add(cases, "lse_unwanted_decode",
      {.seqlen_q = 1,
       .seqlen_k = Scaled(2000),
       .heads_q = 4,
       .heads_k = 1,
       .sinks = Sinks::kNormal,
       .lse = false});
}

}  // namespace

void AddScoreCases(Cases& cases) {
  AddScores(cases);
  AddBiases(cases);
  AddAlibiAndSinks(cases);
}

}  // namespace attend::testing
