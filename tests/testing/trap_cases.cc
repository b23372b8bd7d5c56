#include "absl/strings/str_cat.h"
#include "tests/testing/case_rows.h"
#include "tests/testing/case_table.h"

namespace attend::testing {

void AddTrapCases(Cases& cases) {
  const struct {
    const char* name;
    Trap trap;
  } traps[] = {{"nan_key", Trap::kInKey},
               {"nan_value", Trap::kInValue},
               {"nan_query", Trap::kInQuery},
               {"infinity_key", Trap::kInfinityInKey},
               {"infinity_value", Trap::kInfinityInValue},
               {"infinity_query", Trap::kInfinityInQuery}};
  for (const auto& [name, trap] : traps) {
    Add(cases, absl::StrCat("visible_", name),
        {.seqlen_q = 140,
         .seqlen_k = 140,
         .heads_q = 4,
         .heads_k = 2,
         .mask = Window(20, 0),
         .trap = trap});
    Add(cases, absl::StrCat("visible_", name, "_decode"),
        {.seqlen_q = 3,
         .seqlen_k = Scaled(2000),
         .heads_q = 8,
         .heads_k = 4,
         .mask = Causal(),
         .trap = trap});
  }
  Add(cases, "hidden_window",
      {.seqlen_q = 40, .seqlen_k = 300, .mask = Window(30, 0), .trap = Trap::kHidden});
  Add(cases, "hidden_window_mid_tile",
      {.seqlen_q = 5, .seqlen_k = 200, .mask = Window(17, 0), .trap = Trap::kHidden});
  Add(cases, "hidden_bias",
      {.seqlen_q = 50,
       .seqlen_k = 160,
       .heads_q = 4,
       .heads_k = 2,
       .bias = BiasSpec{.per_head = false, .per_row = false, .values = BiasValues::kKeysMasked},
       .trap = Trap::kHidden});
  Add(cases, "hidden_bias_all",
      {.seqlen_q = 50,
       .seqlen_k = 60,
       .bias = BiasSpec{.values = BiasValues::kAllMasked},
       .trap = Trap::kHidden});
  Add(cases, "hidden_decode",
      {.seqlen_q = 1,
       .seqlen_k = Scaled(3000),
       .heads_q = 4,
       .heads_k = 1,
       .mask = Window(100, 0),
       .padding_k = 50,
       .trap = Trap::kHidden});
  Add(cases, "hidden_padded_decode",
      {.seqlen_q = 1,
       .seqlen_k = 333,
       .heads_q = 4,
       .heads_k = 2,
       .padding_q = 1,
       .padding_k = 100,
       .trap = Trap::kHidden});
  Add(cases, "hidden_causal_by_block",
      {.seqlen_q = 20, .seqlen_k = 150, .mask = Causal(), .padding_k = 42, .trap = Trap::kHidden});
}

}  // namespace attend::testing
