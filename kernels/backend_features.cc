// The options that a backend may lack: their names, and the check that refuses a task.

#include <iterator>

#include "absl/strings/str_cat.h"
#include "kernels/backend.h"
#include "kernels/errors.h"

namespace attend {
namespace {

// One row a feature, in the order in which a task is checked: what it is called, and whether a
// task uses it. kSubnormalInputs is a property of values, which no task announces.
struct FeatureRow {
  Feature feature;
  std::string_view name;
  bool (*used)(const AttentionTask& task);
};

constexpr FeatureRow kFeatureRows[] = {
    {Feature::kFp32, "fp32", [](const AttentionTask& t) { return t.dtype() == DType::kF32; }},
    {Feature::kFp16, "fp16", [](const AttentionTask& t) { return t.dtype() == DType::kF16; }},
    {Feature::kBf16, "bf16", [](const AttentionTask& t) { return t.dtype() == DType::kBF16; }},
    {Feature::kCausal, "causal", [](const AttentionTask& t) { return t.mask.causal; }},
    {Feature::kWindow, "window",
     [](const AttentionTask& t) {
       return t.mask.window_left.has_value() || t.mask.window_right.has_value();
     }},
    {Feature::kSoftcap, "softcap", [](const AttentionTask& t) { return t.softcap != 0.0f; }},
    {Feature::kBias, "bias", [](const AttentionTask& t) { return !t.bias.absent(); }},
    {Feature::kAlibi, "alibi_slopes",
     [](const AttentionTask& t) { return !t.alibi_slopes.absent(); }},
    {Feature::kSinks, "sinks", [](const AttentionTask& t) { return !t.sinks.absent(); }},
    {Feature::kLse, "return_lse", [](const AttentionTask& t) { return !t.lse.absent(); }},
    {Feature::kGroupedHeads, "grouped_heads",
     [](const AttentionTask& t) { return t.heads_q() != t.heads_k(); }},
    {Feature::kValueHeadDim, "value_head_dim",
     [](const AttentionTask& t) { return t.head_dim() != t.head_dim_v(); }},
    {Feature::kSubnormalInputs, "subnormal_inputs", [](const AttentionTask&) { return false; }},
};

}  // namespace

std::string_view Name(Feature feature) {
  for (const FeatureRow& row : kFeatureRows) {
    if (row.feature == feature) return row.name;
  }
  return "unknown";
}

std::vector<Feature> List(FeatureSet features) {
  std::vector<Feature> list;
  list.reserve(std::size(kFeatureRows));
  for (const FeatureRow& row : kFeatureRows) {
    if (features.Has(row.feature)) list.push_back(row.feature);
  }
  return list;
}

absl::Status CheckFeatures(const AttentionTask& task, FeatureSet features,
                           std::string_view backend_name) {
  for (const FeatureRow& row : kFeatureRows) {
    if (features.Has(row.feature) || !row.used(task)) continue;
    return UnsupportedOption(
        row.name, absl::StrCat("the ", absl::string_view(backend_name.data(), backend_name.size()),
                               " backend does not have this option"));
  }
  return absl::OkStatus();
}

}  // namespace attend
