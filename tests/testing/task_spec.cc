#include "tests/testing/task_spec.h"

#include "absl/strings/str_cat.h"
#include "tests/testing/case_table.h"

namespace attend::testing {

TaskSpec RandomTask(Random& random) {
  const auto length = [&]() -> int64_t {
    switch (random.Between(0, 5)) {
      case 0:
        return random.Between(0, 3);
      case 1:
        return 16 * random.Between(1, 12) + random.Between(-1, 1);
      case 2:
        return random.Between(1, 400);
      default:
        return random.Between(1, 150);
    }
  };
  const auto dim = [&] {
    return random.Chance(0.5) ? 8 * random.Between(1, 32) : random.Between(1, 256);
  };
  const auto bound = [&]() -> std::optional<int64_t> {
    if (random.Chance(0.4)) return std::nullopt;
    return random.Chance(0.2) ? 0 : random.Between(0, 200);
  };
  TaskSpec spec;
  spec.seqlen_q = length();
  spec.seqlen_k = random.Chance(0.1) ? Scaled(random.Between(1000, 3000)) : length();
  if (spec.seqlen_k > 500) spec.seqlen_q = random.Between(1, 6);
  spec.heads_k = random.Between(1, 3);
  spec.heads_q = spec.heads_k * random.Between(1, 5);
  spec.head_dim = dim();
  spec.head_dim_v = random.Chance(0.6) ? spec.head_dim : dim();
  spec.mask.causal = random.Chance(0.4);
  if (random.Chance(0.3)) {
    spec.mask.window_left = bound();
    spec.mask.window_right = bound();
  }
  if (random.Chance(0.3)) spec.scale = static_cast<float>(random.Normal());
  if (random.Chance(0.2)) spec.softcap = static_cast<float>(0.5 + 20 * random.Uniform());
  if (random.Chance(0.25)) {
    spec.bias = BiasSpec{.per_head = random.Chance(0.5),
                         .per_row = random.Chance(0.5),
                         .fp32 = random.Chance(0.5),
                         .values = static_cast<BiasValues>(random.Between(0, 5))};
  }
  spec.alibi = random.Chance(0.2);
  if (random.Chance(0.2)) spec.sinks = random.Chance(0.5) ? Sinks::kNormal : Sinks::kExtreme;
  spec.lse = random.Chance(0.8);
  if (random.Chance(0.25)) spec.padding_q = random.Between(0, 70);
  if (random.Chance(0.25)) spec.padding_k = random.Between(0, 70);
  spec.layout = random.Chance(0.7)   ? Layout::kContiguous
                : random.Chance(0.5) ? Layout::kRowGap
                                     : Layout::kHeadMajor;
  if (random.Chance(0.2)) spec.values = Values::kLarge;
  if (random.Chance(0.3)) spec.trap = static_cast<Trap>(random.Between(0, 7));
  return spec;
}

std::string Describe(const TaskSpec& spec) {
  const auto bound = [](const std::optional<int64_t>& value) {
    return value.has_value() ? absl::StrCat(*value) : std::string("none");
  };
  std::string text = absl::StrCat(std::string(Name(spec.dtype)), " Sq ", spec.seqlen_q, "+",
                                  spec.padding_q, " Sk ", spec.seqlen_k, "+", spec.padding_k,
                                  " Hq ", spec.heads_q, " Hk ", spec.heads_k, " D ", spec.head_dim,
                                  " Dv ", spec.head_dim_v == 0 ? spec.head_dim : spec.head_dim_v,
                                  " causal ", spec.mask.causal, " window ",
                                  bound(spec.mask.window_left), ",", bound(spec.mask.window_right));
  absl::StrAppend(&text, " scale ", spec.scale.has_value() ? absl::StrCat(*spec.scale) : "default",
                  " softcap ", spec.softcap, " alibi ", spec.alibi, " sinks ",
                  static_cast<int>(spec.sinks), " lse ", spec.lse, " layout ",
                  static_cast<int>(spec.layout), " values ", static_cast<int>(spec.values),
                  " trap ", static_cast<int>(spec.trap));
  if (spec.bias.has_value()) {
    absl::StrAppend(&text, " bias per_head ", spec.bias->per_head, " per_row ", spec.bias->per_row,
                    " fp32 ", spec.bias->fp32, " values ", static_cast<int>(spec.bias->values));
  }
  return text;
}

}  // namespace attend::testing
