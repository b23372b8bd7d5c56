// attend run: one request from .npy files.

#include <cmath>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/command.h"
#include "cli/compare.h"
#include "cli/json.h"
#include "cli/npy.h"

namespace attend::cli {
namespace {

struct RunFlags {
  std::string q, k, v, o, lse, bias, alibi_slopes, sinks;
  std::optional<std::string> dtype;
  client::AttendOptions options;
  std::optional<double> scale, softcap;
  std::string priority = "normal";
  std::string expect, expect_lse;
  std::optional<double> tolerance, lse_tolerance;
  std::string output = "text";
};

void AddFlags(RunFlags& run, FlagSet& flags) {
  flags.Group("Tensors (.npy: <f4 is fp32, <f2 is fp16, <u2 is bf16)");
  flags.Add("q", &run.q, "FILE", "[Sq, Hq, D], padded batch [B, Sq, Hq, D], ragged [total, Hq, D]");
  flags.Add("k", &run.k, "FILE", "[Sk, Hk, D] and so on");
  flags.Add("v", &run.v, "FILE", "[Sk, Hk, Dv] and so on");
  flags.Add("o", &run.o, "FILE", "where to store the output");
  flags.Add("lse", &run.lse, "FILE", "where to store the log-sum-exp, fp32 [Hq, Sq]");
  flags.Add("dtype", &run.dtype, "fp32|fp16|bf16", "what the files must hold; <u2 needs bf16");
  flags.Group("Attention");
  flags.Add("causal", &run.options.causal, "", "query i sees keys up to i + Sk - Sq");
  flags.Add("scale", &run.scale, "NUMBER", "multiplies q.k; 1/sqrt(D) when not given");
  flags.Add("window-left", &run.options.window_left, "KEYS", "keys kept before a query's position");
  flags.Add("window-right", &run.options.window_right, "KEYS", "keys kept after it");
  flags.Add("softcap", &run.softcap, "NUMBER", "cap * tanh(score / cap)");
  flags.Add("bias", &run.bias, "FILE", "added to scores: [B or 1, Hq or 1, Sq or 1, Sk]");
  flags.Add("alibi-slopes", &run.alibi_slopes, "FILE", "fp32 [Hq]");
  flags.Add("sinks", &run.sinks, "FILE", "fp32 [Hq], natural-log units");
  flags.Add("q-lens", &run.options.q_lens, "N,N,...", "real query rows of a padded batch");
  flags.Add("kv-lens", &run.options.kv_lens, "N,N,...", "real keys of a padded batch");
  flags.Add("cu-seqlens-q", &run.options.cu_seqlens_q, "0,N,...", "starts of a ragged batch");
  flags.Add("cu-seqlens-k", &run.options.cu_seqlens_k, "0,N,...", "starts of a ragged batch");
  flags.Group("Request");
  flags.Add("priority", &run.priority, "low|normal|high", "class in the server's queue");
  flags.Add("request-id", &run.options.request_id, "TEXT", "for logs and errors; made up if empty");
  flags.Group("Answer");
  flags.Add("expect", &run.expect, "FILE", "output to compare with; exit 1 when it differs");
  flags.Add("expect-lse", &run.expect_lse, "FILE", "log-sum-exp to compare with");
  flags.Add("tolerance", &run.tolerance, "NUMBER",
            "largest error as a share of the largest expected value; without it 1e-5 for fp32, "
            "2e-3 for fp16, 1.6e-2 for bf16");
  flags.Add("lse-tolerance", &run.lse_tolerance, "NUMBER",
            "the same for the log-sum-exp; without it 1e-5 for fp32 inputs, 1e-4 for the others");
  flags.Add("output", &run.output, "text|json", "form of the summary on standard output");
}

absl::StatusOr<client::TensorRef> View(const std::string& path, const NpyArray& array) {
  client::TensorRef ref{client::DataType::kFp32, array.shape, array.data.data(), array.data.size()};
  switch (array.type) {
    case NpyType::kF32:
      return ref;
    case NpyType::kF16:
      ref.dtype = client::DataType::kFp16;
      return ref;
    case NpyType::kU16:
      ref.dtype = client::DataType::kBf16;
      return ref;
    case NpyType::kF64:
      break;
  }
  return absl::InvalidArgumentError(absl::StrCat(path, ": fp64 cannot be sent; convert it"));
}

NpyType NpyTypeOf(client::DataType type) {
  switch (type) {
    case client::DataType::kFp32:
      return NpyType::kF32;
    case client::DataType::kFp16:
      return NpyType::kF16;
    case client::DataType::kBf16:
      return NpyType::kU16;
  }
  return NpyType::kF32;
}

// The files of one request; the views point into them.
class Files {
 public:
  absl::StatusOr<client::TensorRef> Load(const std::string& path) {
    absl::StatusOr<NpyArray> array = ReadNpy(path);
    if (!array.ok()) return array.status();
    arrays_.push_back(std::make_unique<NpyArray>(*std::move(array)));
    return View(path, *arrays_.back());
  }

  absl::Status LoadOptional(const std::string& path, std::optional<client::TensorRef>* ref) {
    if (path.empty()) return absl::OkStatus();
    absl::StatusOr<client::TensorRef> loaded = Load(path);
    if (!loaded.ok()) return loaded.status();
    *ref = *std::move(loaded);
    return absl::OkStatus();
  }

 private:
  std::vector<std::unique_ptr<NpyArray>> arrays_;
};

absl::Status LoadAll(RunFlags& run, Files& files, client::AttendInputs* inputs) {
  const struct {
    const char* name;
    const std::string* path;
    client::TensorRef* ref;
  } tensors[] = {
      {"--q", &run.q, &inputs->q}, {"--k", &run.k, &inputs->k}, {"--v", &run.v, &inputs->v}};
  for (const auto& row : tensors) {
    absl::StatusOr<client::TensorRef> ref = files.Load(*row.path);
    if (!ref.ok()) return ref.status();
    *row.ref = *std::move(ref);
    const std::string type(client::Name(row.ref->dtype));
    // uint16 files might be anything; saying bf16 is the user's word for it.
    const bool needs_word = row.ref->dtype == client::DataType::kBf16;
    if (run.dtype.has_value() ? *run.dtype != type : needs_word) {
      return absl::InvalidArgumentError(
          absl::StrCat(row.name, ": ", *row.path, " holds ", type, needs_word ? " (or uint16)" : "",
                       ", but --dtype is ", run.dtype.value_or("not given")));
    }
  }
  absl::Status status = files.LoadOptional(run.bias, &run.options.bias);
  status.Update(files.LoadOptional(run.alibi_slopes, &run.options.alibi_slopes));
  status.Update(files.LoadOptional(run.sinks, &run.options.sinks));
  return status;
}

// Compares, prints one line, and says whether it is within tolerance.
absl::StatusOr<Comparison> CompareWithFile(const std::string& path, const client::Tensor& actual,
                                           double tolerance) {
  absl::StatusOr<NpyArray> expected = ReadNpy(path);
  if (!expected.ok()) return expected.status();
  if (expected->shape != actual.shape()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": its shape is [", absl::StrJoin(expected->shape, ", "),
                     "], the answer's is [", absl::StrJoin(actual.shape(), ", "), "]"));
  }
  return Compare(
      *expected,
      {NpyTypeOf(actual.dtype()), actual.shape(), {actual.bytes().begin(), actual.bytes().end()}},
      tolerance);
}

struct Check {
  const char* name;
  std::string path;
  Comparison comparison;
};

void PrintText(const client::AttendResult& result, double seconds,
               const std::vector<Check>& checks) {
  const client::ServingStats& stats = result.stats;
  std::printf("o           %s [%s]\n", std::string(client::Name(result.o.dtype())).c_str(),
              absl::StrJoin(result.o.shape(), ", ").c_str());
  std::printf("request id  %s\n", result.request_id.c_str());
  std::printf("time        %.3f ms here, %.3f ms in the server on %s %d\n", seconds * 1e3,
              stats.total_seconds * 1e3, stats.backend.c_str(), stats.device);
  std::printf("stages      decode %.3f, queue %.3f, copy in %.3f, kernel %.3f, copy out %.3f ms\n",
              stats.decode_seconds * 1e3, stats.queue_seconds * 1e3, stats.copy_in_seconds * 1e3,
              stats.kernel_seconds * 1e3, stats.copy_out_seconds * 1e3);
  std::printf("batch       %lld requests, %lld sequences, %lld query rows\n",
              static_cast<long long>(stats.batch_requests),
              static_cast<long long>(stats.batch_tasks),
              static_cast<long long>(stats.batch_tokens));
  for (const Check& check : checks) {
    std::printf("%-11s %s: largest error %.3g, allowed %.3g\n", check.name,
                check.comparison.within ? "as expected" : "WRONG", check.comparison.max_error,
                check.comparison.allowed);
  }
}

void PrintJson(const client::AttendResult& result, double seconds,
               const std::vector<Check>& checks) {
  JsonWriter json;
  json.BeginObject();
  json.Field("request_id", result.request_id);
  json.Field("attempts", result.attempts);
  json.Field("dtype", client::Name(result.o.dtype()));
  json.BeginArray("shape");
  for (const int64_t dimension : result.o.shape()) json.Element(dimension);
  json.EndArray();
  json.Field("client_seconds", seconds);
  json.BeginObject("server");
  const client::ServingStats& stats = result.stats;
  json.Field("backend", stats.backend);
  json.Field("device", stats.device);
  json.Field("decode_seconds", stats.decode_seconds);
  json.Field("queue_seconds", stats.queue_seconds);
  json.Field("copy_in_seconds", stats.copy_in_seconds);
  json.Field("kernel_seconds", stats.kernel_seconds);
  json.Field("copy_out_seconds", stats.copy_out_seconds);
  json.Field("total_seconds", stats.total_seconds);
  json.Field("batch_requests", stats.batch_requests);
  json.Field("batch_tasks", stats.batch_tasks);
  json.Field("batch_tokens", stats.batch_tokens);
  json.EndObject();
  json.BeginArray("checks");
  for (const Check& check : checks) {
    json.BeginObject();
    json.Field("name", check.name);
    json.Field("expected", check.path);
    json.Field("within", check.comparison.within);
    json.Field("max_error", check.comparison.max_error);
    json.Field("allowed", check.comparison.allowed);
    json.EndObject();
  }
  json.EndArray();
  json.EndObject();
  std::printf("%s\n", json.text().c_str());
}

double DefaultTolerance(client::DataType type) {
  switch (type) {
    case client::DataType::kFp32:
      return 1e-5;
    case client::DataType::kFp16:
      return 2e-3;  // two rounding steps of the output's largest value
    case client::DataType::kBf16:
      return 1.6e-2;  // the same
  }
  return 0;
}

absl::Status Finish(const RunFlags& run, const client::AttendResult& result, double seconds,
                    bool* wrong) {
  absl::Status status;
  if (!run.o.empty()) {
    status.Update(WriteNpy(run.o, NpyTypeOf(result.o.dtype()), result.o.shape(), result.o.bytes()));
  }
  if (!run.lse.empty()) {
    status.Update(WriteNpy(run.lse, NpyType::kF32, result.lse.shape(), result.lse.bytes()));
  }
  if (!status.ok()) return status;
  std::vector<Check> checks;
  const bool fp32 = result.o.dtype() == client::DataType::kFp32;
  const double tolerance = run.tolerance.value_or(DefaultTolerance(result.o.dtype()));
  const double lse_tolerance = run.lse_tolerance.value_or(fp32 ? 1e-5 : 1e-4);
  const struct {
    const char* name;
    const std::string& path;
    const client::Tensor& tensor;
    double tolerance;
  } rows[] = {{"o", run.expect, result.o, tolerance},
              {"lse", run.expect_lse, result.lse, lse_tolerance}};
  for (const auto& row : rows) {
    if (row.path.empty()) continue;
    absl::StatusOr<Comparison> comparison = CompareWithFile(row.path, row.tensor, row.tolerance);
    if (!comparison.ok()) return comparison.status();
    *wrong |= !comparison->within;
    checks.push_back({row.name, row.path, *comparison});
  }
  if (run.output == "json") {
    PrintJson(result, seconds, checks);
  } else {
    PrintText(result, seconds, checks);
  }
  return absl::OkStatus();
}

// A line when the flags contradict each other, or nothing.
std::string CheckFlags(RunFlags& run) {
  if (run.q.empty() || run.k.empty() || run.v.empty()) return "--q, --k and --v are needed";
  if (run.output != "text" && run.output != "json") return "--output: is text or json";
  if (run.dtype && *run.dtype != "fp32" && *run.dtype != "fp16" && *run.dtype != "bf16") {
    return "--dtype: is fp32, fp16 or bf16";
  }
  for (const std::optional<double>& tolerance : {run.tolerance, run.lse_tolerance}) {
    if (tolerance && !(*tolerance >= 0)) return "--tolerance, --lse-tolerance: are 0 or more";
  }
  if (run.priority == "low") {
    run.options.priority = client::Priority::kLow;
  } else if (run.priority == "high") {
    run.options.priority = client::Priority::kHigh;
  } else if (run.priority != "normal") {
    return "--priority: is low, normal or high";
  }
  if (run.scale) run.options.scale = static_cast<float>(*run.scale);
  if (run.softcap) run.options.softcap = static_cast<float>(*run.softcap);
  run.options.return_lse = !run.lse.empty() || !run.expect_lse.empty();
  return "";
}

}  // namespace

int RunCommand(absl::Span<char* const> arguments) {
  RunFlags run;
  ConnectionFlags connection;
  connection.options.channels = 1;
  FlagSet flags("attend run",
                "Sends one request from .npy files, stores or checks the answer.\n"
                "Exit codes: 0 done, 1 failed or not as expected, 2 usage.");
  AddFlags(run, flags);
  connection.AddTo(flags);
  if (auto exit = ParseOrExit(flags, arguments)) return *exit;
  if (const std::string what = CheckFlags(run); !what.empty()) return Fail(kExitUsage, what);

  auto client = connection.MakeClient();
  if (!client.ok()) return Fail(kExitUsage, Describe(client.status()));
  Files files;
  client::AttendInputs inputs;
  if (absl::Status status = LoadAll(run, files, &inputs); !status.ok()) {
    return Fail(kExitFailure, std::string(status.message()));
  }
  const auto start = std::chrono::steady_clock::now();
  const absl::StatusOr<client::AttendResult> result = (*client)->Attend(inputs, run.options);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  if (!result.ok()) {
    return Fail(kExitFailure, absl::StrCat(connection.address, ": ", Describe(result.status())));
  }
  bool wrong = false;
  if (absl::Status status = Finish(run, *result, took.count(), &wrong); !status.ok()) {
    return Fail(kExitFailure, std::string(status.message()));
  }
  return wrong ? kExitFailure : kExitOk;
}

}  // namespace attend::cli
