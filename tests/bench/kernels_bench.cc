// How fast and how large attention is on each backend: time, TFLOP/s, GB/s and peak workspace.
//
//   kernels_bench                                              cpu against unfused-cpu
//   kernels_bench --backends=cuda,unfused-cuda --heads=16 --head_dim=128 --dtypes=bf16
//   kernels_bench --seqlens=1024,8192 --causal=1 --json=out.json
//
// Random normal data (zeros run faster than real numbers on some devices). Tensors stand where the
// kernels read them, so copies are not timed. Backends take turns at each shape. FLOPs are
// 4 * heads * S^2 * head_dim, half of that when causal; GB/s counts q, k, v and o once each.

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/backend.h"
#include "kernels/reference/number_formats.h"
#include "tests/bench/device_tensors.h"
#include "tests/testing/random.h"

using Words = std::vector<std::string>;

ABSL_FLAG(Words, backends, Words({"cpu", "unfused-cpu"}), "names from the registry");
ABSL_FLAG(Words, seqlens, Words({"512", "1024", "2048", "4096", "8192", "16384"}),
          "rows of q and of k and v");
ABSL_FLAG(int, heads, 2, "query heads, as many kv heads");
ABSL_FLAG(int, head_dim, 64, "columns of q, k, v and o");
ABSL_FLAG(Words, dtypes, Words({"fp32", "bf16"}), "fp32, fp16, bf16");
ABSL_FLAG(Words, causal, Words({"0"}), "0, 1 or both");
ABSL_FLAG(int, threads, 0, "of CPU backends; 0: one a core");
ABSL_FLAG(int, device, 0, "CUDA ordinal");
ABSL_FLAG(double, min_seconds, 0.5, "runs of one row take at least this long together");
ABSL_FLAG(std::string, json, "", "also write the rows to this file");

namespace attend::bench {
namespace {

constexpr int kWarmups = 1;
constexpr size_t kMinRuns = 3;
constexpr size_t kMaxRuns = 1000;

struct Shape {
  int64_t seqlen = 0, heads = 0, head_dim = 0;
  DType dtype = DType::kF32;
  bool causal = false;

  int64_t tensor_bytes() const { return seqlen * heads * head_dim * ByteSize(dtype); }
  double flops() const {
    const double s = static_cast<double>(seqlen);
    return 4.0 * static_cast<double>(heads * head_dim) * s * s * (causal ? 0.5 : 1.0);
  }
};

struct Row {
  std::string backend;
  Shape shape;
  absl::Status status;  // RESOURCE_EXHAUSTED: too large for this backend
  double seconds = 0;   // median
  size_t runs = 0;
  int64_t workspace_bytes = 0;
};

struct Contender {
  std::string name;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<Executor> executor;
};

absl::StatusOr<DType> ParseDType(const std::string& name) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (name == Name(dtype)) return dtype;
  }
  return absl::InvalidArgumentError(absl::StrCat("--dtypes: unknown type ", name));
}

// Three tensors of random numbers, on the host.
std::vector<std::vector<uint8_t>> RandomInputs(const Shape& shape) {
  testing::Random random(testing::MixSeed(testing::TestSeed(), "bench"));
  std::vector<std::vector<uint8_t>> inputs(3);
  for (std::vector<uint8_t>& input : inputs) {
    input.resize(static_cast<size_t>(shape.tensor_bytes()));
    for (int64_t i = 0; i < shape.seqlen * shape.heads * shape.head_dim; ++i) {
      reference::StoreElement(input.data(), shape.dtype, i, random.Normal());
    }
  }
  return inputs;
}

// The runs of one row: median of the kernels' own time.
absl::Status Measure(const Contender& contender, const Shape& shape,
                     const std::vector<std::vector<uint8_t>>& inputs, Row* row) {
  std::vector<std::unique_ptr<DeviceBuffer>> buffers;
  std::vector<TensorView> views;
  for (size_t i = 0; i < 4; ++i) {  // q, k, v, o
    absl::StatusOr<std::unique_ptr<DeviceBuffer>> buffer = AllocateFor(
        contender.name, absl::GetFlag(FLAGS_device), static_cast<size_t>(shape.tensor_bytes()));
    if (!buffer.ok()) return buffer.status();
    if (i < 3) {
      absl::Status copied = (*buffer)->CopyIn(inputs[i].data(), inputs[i].size());
      if (!copied.ok()) return copied;
    }
    views.push_back(TensorView::Contiguous((*buffer)->data(), shape.dtype, (*buffer)->memory(),
                                           shape.seqlen, shape.heads, shape.head_dim));
    buffers.push_back(*std::move(buffer));
  }
  AttentionTask task;
  task.q = views[0];
  task.k = views[1];
  task.v = views[2];
  task.o = views[3];
  task.seqlen_q = task.seqlen_k = shape.seqlen;
  task.softmax_scale = 1 / std::sqrt(static_cast<float>(shape.head_dim));
  task.mask.causal = shape.causal;
  if (absl::Status status = Validate(task); !status.ok()) return status;
  if (absl::Status status = contender.backend->Supports(task); !status.ok()) return status;

  std::vector<double> seconds;
  double total = 0;
  for (int run = -kWarmups; run < static_cast<int>(kMaxRuns); ++run) {
    BatchReport report;
    if (absl::Status status = contender.executor->Run({{&task, 1}}, &report); !status.ok()) {
      return status;
    }
    if (run < 0) continue;
    seconds.push_back(report.kernel.seconds());
    total += seconds.back();
    row->workspace_bytes = std::max(row->workspace_bytes, report.workspace_bytes);
    if (seconds.size() >= kMinRuns && total >= absl::GetFlag(FLAGS_min_seconds)) break;
  }
  std::sort(seconds.begin(), seconds.end());
  row->seconds = seconds[seconds.size() / 2];
  row->runs = seconds.size();
  return absl::OkStatus();
}

double TeraFlops(const Row& row) { return row.shape.flops() / row.seconds / 1e12; }
double GigaBytes(const Row& row) {
  return 4 * static_cast<double>(row.shape.tensor_bytes()) / row.seconds / 1e9;
}

void Print(const Row& row) {
  absl::PrintF("%-13s %6d %5d %4d %5s %7s", row.backend, row.shape.seqlen, row.shape.heads,
               row.shape.head_dim, std::string(Name(row.shape.dtype)),
               row.shape.causal ? "causal" : "dense");
  if (row.status.ok()) {
    absl::PrintF(" %11.3f %9.3f %9.2f %13.1f %5d\n", row.seconds * 1e3, TeraFlops(row),
                 GigaBytes(row), static_cast<double>(row.workspace_bytes) / 1e6, row.runs);
  } else {
    absl::PrintF("   %s\n", row.status.ToString());
  }
  std::fflush(stdout);
}

std::string Json(const Row& row) {
  std::string text = absl::StrFormat(
      R"({"backend": "%s", "seqlen": %d, "heads": %d, "head_dim": %d, "dtype": "%s", "causal": %s)",
      row.backend, row.shape.seqlen, row.shape.heads, row.shape.head_dim,
      std::string(Name(row.shape.dtype)), row.shape.causal ? "true" : "false");
  if (row.status.ok()) {
    absl::StrAppendFormat(
        &text,
        R"(, "seconds": %.9g, "runs": %d, "tflops": %.6g, "gbps": %.6g, "workspace_bytes": %d)",
        row.seconds, row.runs, TeraFlops(row), GigaBytes(row), row.workspace_bytes);
  } else {
    absl::StrAppendFormat(&text, R"(, "error": "%s")", absl::StatusCodeToString(row.status.code()));
  }
  return text + "}";
}

bool WriteJson(const std::vector<Contender>& contenders, const std::vector<Row>& rows) {
  const std::time_t now = std::time(nullptr);
  char date[16];
  std::strftime(date, sizeof(date), "%Y-%m-%d", std::gmtime(&now));
  std::vector<std::string> devices, lines;
  for (const Contender& contender : contenders) {
    const DeviceInfo device = contender.backend->device();
    devices.push_back(absl::StrFormat(R"("%s": {"name": "%s", "architecture": "%s"})",
                                      contender.name, device.name, device.architecture));
  }
  for (const Row& row : rows) lines.push_back(Json(row));
  std::ofstream file(absl::GetFlag(FLAGS_json));
  file << "{\"date\": \"" << date << "\",\n \"threads\": " << absl::GetFlag(FLAGS_threads)
       << ",\n \"devices\": {" << absl::StrJoin(devices, ", ") << "},\n \"rows\": [\n  "
       << absl::StrJoin(lines, ",\n  ") << "\n]}\n";
  file.close();
  return file.good();
}

absl::StatusOr<std::vector<Shape>> Shapes() {
  std::vector<Shape> shapes;
  for (const std::string& name : absl::GetFlag(FLAGS_dtypes)) {
    const absl::StatusOr<DType> dtype = ParseDType(name);
    if (!dtype.ok()) return dtype.status();
    for (const std::string& causal : absl::GetFlag(FLAGS_causal)) {
      if (causal != "0" && causal != "1") {
        return absl::InvalidArgumentError("--causal: each must be 0 or 1");
      }
      for (const std::string& seqlen : absl::GetFlag(FLAGS_seqlens)) {
        Shape shape;
        if (!absl::SimpleAtoi(seqlen, &shape.seqlen) || shape.seqlen < 1) {
          return absl::InvalidArgumentError(absl::StrCat("--seqlens: not a length: ", seqlen));
        }
        shape.heads = absl::GetFlag(FLAGS_heads);
        shape.head_dim = absl::GetFlag(FLAGS_head_dim);
        shape.dtype = *dtype;
        shape.causal = causal == "1";
        shapes.push_back(shape);
      }
    }
  }
  return shapes;
}

int Main() {
  const absl::StatusOr<std::vector<Shape>> shapes = Shapes();
  if (!shapes.ok()) {
    std::fprintf(stderr, "%s\n", std::string(shapes.status().message()).c_str());
    return 2;
  }
  BackendOptions options;
  options.threads = absl::GetFlag(FLAGS_threads);
  options.device = absl::GetFlag(FLAGS_device);
  std::vector<Contender> contenders;
  for (const std::string& name : absl::GetFlag(FLAGS_backends)) {
    absl::StatusOr<std::unique_ptr<Backend>> backend = MakeBackend(name, options);
    if (!backend.ok()) {
      std::fprintf(stderr, "%s: %s\n", name.c_str(), backend.status().ToString().c_str());
      return 1;
    }
    absl::StatusOr<std::unique_ptr<Executor>> executor = (*backend)->MakeExecutor();
    if (!executor.ok()) {
      std::fprintf(stderr, "%s: %s\n", name.c_str(), executor.status().ToString().c_str());
      return 1;
    }
    const DeviceInfo device = (*backend)->device();
    absl::PrintF("%s: %s, %s\n", name, device.name, device.architecture);
    contenders.push_back({name, *std::move(backend), *std::move(executor)});
  }
  absl::PrintF("%-13s %6s %5s %4s %5s %7s %11s %9s %9s %13s %5s\n", "backend", "S", "heads", "D",
               "dtype", "mask", "median ms", "TFLOP/s", "GB/s", "workspace MB", "runs");
  std::vector<Row> rows;
  bool failed = false;
  for (const Shape& shape : *shapes) {
    const std::vector<std::vector<uint8_t>> inputs = RandomInputs(shape);
    for (const Contender& contender : contenders) {
      Row row;
      row.backend = contender.name;
      row.shape = shape;
      row.status = Measure(contender, shape, inputs, &row);
      // Running out of memory is a result, and the point of the comparison.
      failed = failed || !(row.status.ok() || absl::IsResourceExhausted(row.status));
      Print(row);
      rows.push_back(std::move(row));
    }
  }
  if (!absl::GetFlag(FLAGS_json).empty() && !WriteJson(contenders, rows)) {
    std::fprintf(stderr, "cannot write %s\n", absl::GetFlag(FLAGS_json).c_str());
    return 1;
  }
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace attend::bench

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("Times attention on backends of the registry, in turn.");
  absl::ParseCommandLine(argc, argv);
  return attend::bench::Main();
}
