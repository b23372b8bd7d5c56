// Times and checks the Hopper forward family alone, on tensors that lie on the device.
//
//   hopper_bench [--check] [--no-time] [--data MODE | --tensors PREFIX] [--reps N] [--idle MS]
//                SHAPE...
//
// SHAPE is key=value pairs joined by commas:
//   b (sequences), sq, sk, hq, hk, d, dv, type (bf16|fp16), causal (0|1), left, right (window),
//   scale, softcap, ragged (log|uniform: b random lengths instead of sq), pad (extra rows of q, k,
//   v filled with NaN), plan=1 (planning and upload are part of the time),
//   mix=1 (masks and scales differ from task to task), mix=2 (also head counts: hq or half of it)
// Every shape prints one JSON object on a line. Data modes: normal, rising, falling, equal, late,
// negative. --tensors takes fp16 tensors of a model from PREFIX_q.npy, _k and _v ([rows, heads,
// columns]), repeated along rows; heads side by side make up wider ones. Exit code 1 when a check
// fails, 2 for bad arguments or CUDA errors.
//
// The check computes sampled rows in double precision on the device, apart from the kernels.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cuda/forward/sm90/sm90_family.h"

namespace attend::cuda {
namespace {

void Check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(2);
}
#define CHECK_CUDA(call) Check((call), #call)

__host__ __device__ uint64_t Mix(uint64_t z) {
  z += 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// The header of an fp16 .npy file of three dimensions.
struct NpyHalf {
  int64_t rows = 0, heads = 0, columns = 0;
};

std::vector<__half> ReadNpy(const std::string& path, NpyHalf* header) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), {}};
  const size_t shape = bytes.find("'shape': (");
  const size_t start = bytes.size() < 10 ? 0
                                         : 10 + static_cast<uint8_t>(bytes[8]) +
                                               256 * static_cast<uint8_t>(bytes[9]);
  long long rows = 0, heads = 0, columns = 0;
  if (shape == std::string::npos || bytes.find("'<f2'") > start ||
      std::sscanf(bytes.c_str() + shape, "'shape': (%lld, %lld, %lld)", &rows, &heads, &columns) !=
          3 ||
      rows <= 0 || bytes.size() != start + static_cast<size_t>(2 * rows * heads * columns)) {
    std::fprintf(stderr, "%s: no .npy file of fp16 [rows, heads, columns]\n", path.c_str());
    std::exit(2);
  }
  *header = {rows, heads, columns};
  std::vector<__half> elements((bytes.size() - start) / 2);
  std::memcpy(elements.data(), bytes.data() + start, bytes.size() - start);
  return elements;
}

enum class Data { kNormal, kRising, kFalling, kEqual, kLate, kNegative };
enum class Tensor { kQ, kK, kV };

template <class T>
__device__ T Convert(float x) {
  if constexpr (std::is_same_v<T, __half>)
    return __float2half(x);
  else
    return __float2bfloat16(x);
}
template <class T>
__device__ float ToFloat(T x) {
  if constexpr (std::is_same_v<T, __half>)
    return __half2float(x);
  else
    return __bfloat162float(x);
}

// Random normal elements. Modes other than normal add a part to q and k along the first column, so
// that scores rise or fall with the key's index by about 60 over the sequence, whatever its length.
template <class T>
__global__ void FillRandom(T* out, int64_t rows, int64_t live, int64_t heads, int64_t columns,
                           uint64_t seed, Data data, Tensor tensor) {
  const int64_t count = rows * heads * columns;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const uint64_t r = Mix(seed * 0x100000001B3ull + i);
    const float u = ((r >> 40) + 1) * (1.0f / 16777217.0f);
    const float w = ((r >> 8) & 0xFFFFFF) * (1.0f / 16777216.0f);
    float x = sqrtf(-2.0f * logf(u)) * cospif(2.0f * w);
    const int64_t row = i / (heads * columns);
    const int64_t column = i % columns;
    const float along = live > 1 ? static_cast<float>(row) / (live - 1) : 0.0f;
    const float strong = sqrtf(8.0f * sqrtf(static_cast<float>(columns)));
    if (tensor != Tensor::kV) {
      if (data == Data::kRising || data == Data::kFalling) {
        const float ramp = data == Data::kRising ? 1.0f - along : along;  // blocks run backwards
        if (column == 0) x = tensor == Tensor::kQ ? strong : strong * 8.0f * ramp;
      } else if (data == Data::kEqual) {
        if (tensor == Tensor::kK) x = 0.25f;
      } else if (data == Data::kLate) {
        if (column == 0) x = tensor == Tensor::kQ ? strong : (row == 0 ? 12.0f * strong : 0.0f);
      } else if (data == Data::kNegative) {
        x = tensor == Tensor::kQ ? fabsf(x) : -fabsf(x);
      }
    }
    out[i] = row < live ? Convert<T>(x) : Convert<T>(__int_as_float(0x7fffffff));
  }
}

// Rows of a file over and over; heads of the file side by side.
template <class T>
__global__ void FillFrom(T* out, int64_t rows, int64_t live, int64_t heads, int64_t columns,
                         NpyHalf file, const __half* elements) {
  const int64_t count = rows * heads * columns;
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    const int64_t row = i / (heads * columns);
    const int64_t across = i % (heads * columns) % (file.heads * file.columns);
    const int64_t at = row % file.rows * file.heads * file.columns + across;
    out[i] = row < live ? Convert<T>(__half2float(elements[at]))
                        : Convert<T>(__int_as_float(0x7fffffff));
  }
}

struct Reference {
  AttentionTask task;
  int64_t left, right;  // clipped bounds; causal folded in
};

// One block for a sampled (row, head): double precision. stats: sum of squares of error and of the
// reference, both of o; maximum errors of o and of lse as float bits.
template <class T>
__global__ void CompareRow(Reference reference, uint64_t seed, double* squares, int* maxima) {
  extern __shared__ double scores[];
  __shared__ double shared[256];
  const AttentionTask& task = reference.task;
  const int64_t total = task.q.rows * task.q.heads;
  uint64_t id = Mix(seed * 7919 + blockIdx.x) % total;
  if (blockIdx.x == 0) id = 0;
  if (blockIdx.x == 1) id = total - 1;
  const int64_t head = id % task.q.heads, row = id / task.q.heads;
  const int64_t kv_head = head / (task.q.heads / task.k.heads);
  const int tid = threadIdx.x;
  const int64_t position = row + task.seqlen_k - task.seqlen_q;
  int64_t begin = max(int64_t{0}, position - reference.left);
  int64_t end = min(task.seqlen_k, position + reference.right + 1);
  if (row >= task.seqlen_q) end = begin = 0;
  const T* q =
      static_cast<const T*>(task.q.data) + row * task.q.row_stride + head * task.q.head_stride;
  const auto reduce = [&](double x, bool maximum) {
    shared[tid] = x;
    __syncthreads();
    for (int w = 128; w > 0; w /= 2) {
      if (tid < w)
        shared[tid] = maximum ? fmax(shared[tid], shared[tid + w]) : shared[tid] + shared[tid + w];
      __syncthreads();
    }
    const double result = shared[0];
    __syncthreads();
    return result;
  };
  // The scores do not fit shared memory for long sequences: two passes, in pieces.
  const auto score = [&](int64_t key) {
    const T* k =
        static_cast<const T*>(task.k.data) + key * task.k.row_stride + kv_head * task.k.head_stride;
    double s = 0;
    for (int64_t c = 0; c < task.q.columns; ++c) {
      s += static_cast<double>(ToFloat(q[c])) * static_cast<double>(ToFloat(k[c]));
    }
    s *= task.softmax_scale;
    if (task.softcap > 0) s = task.softcap * tanh(s / task.softcap);
    if (task.alibi_slopes.data != nullptr)
      s -= task.alibi_slopes.data[head] * fabs(static_cast<double>(position - key));
    return s;
  };
  double top = -INFINITY;
  for (int64_t key = begin + tid; key < end; key += 256) top = fmax(top, score(key));
  top = reduce(top, true);
  double sum = 0;
  const int columns = static_cast<int>(task.v.columns);
  double acc = 0;  // of column tid
  for (int64_t from = begin; from < end; from += 1024) {
    const int64_t count = min(int64_t{1024}, end - from);
    for (int64_t i = tid; i < count; i += 256) {
      scores[i] = exp(score(from + i) - top);
      sum += scores[i];
    }
    __syncthreads();
    if (tid < columns) {
      const T* v = static_cast<const T*>(task.v.data) + from * task.v.row_stride +
                   kv_head * task.v.head_stride + tid;
      for (int64_t i = 0; i < count; ++i)
        acc += scores[i] * static_cast<double>(ToFloat(v[i * task.v.row_stride]));
    }
    __syncthreads();
  }
  sum = reduce(sum, false);
  double lse = top + log(sum);
  if (task.sinks.data != nullptr && row < task.seqlen_q) {
    const double sink = task.sinks.data[head];
    const double high = fmax(sink, lse);
    const double all = high + log(exp(sink - high) + exp(lse - high));
    acc *= exp(lse - all);
    lse = all;
  }
  double error = 0, square = 0;
  if (tid < columns) {
    const double expected = begin < end ? acc / sum : 0.0;
    const double got = ToFloat(static_cast<const T*>(
        task.o.data)[row * task.o.row_stride + head * task.o.head_stride + tid]);
    error = fabs(got - expected);
    if (!(error == error)) error = 1e30;
    if (begin >= end && got != 0.0) error = 1e30;
    square = expected * expected;
  }
  const double worst = reduce(error, true);
  const double error2 = reduce(error * error, false);
  const double square_sum = reduce(square, false);
  if (tid == 0) {
    atomicAdd(squares, error2);
    atomicAdd(squares + 1, square_sum);
    atomicMax(maxima, __float_as_int(static_cast<float>(worst)));
    const double got = task.lse.data[head * task.lse.head_stride + row];
    double difference = fabs(got - lse);
    if (begin >= end) difference = got == lse ? 0.0 : 1e30;
    if (!(difference == difference)) difference = 1e30;
    difference /= fmax(1.0, fabs(top) < 1e30 ? fabs(top) : 1.0);
    atomicMax(maxima + 1, __float_as_int(static_cast<float>(difference)));
  }
}

// One shape's settings.
struct Settings {
  std::map<std::string, std::string> values;
  int64_t Int(const char* key, int64_t otherwise) const {
    const auto it = values.find(key);
    return it == values.end() ? otherwise : std::atoll(it->second.c_str());
  }
  double Real(const char* key, double otherwise) const {
    const auto it = values.find(key);
    return it == values.end() ? otherwise : std::atof(it->second.c_str());
  }
  std::string Text(const char* key, const char* otherwise) const {
    const auto it = values.find(key);
    return it == values.end() ? otherwise : it->second;
  }
};

Settings Parse(const std::string& text) {
  static const char* const kKnown[] = {
      "b",     "sq",    "sk",      "hq",     "hk",  "d",    "dv",    "type",  "causal", "left",
      "right", "scale", "softcap", "ragged", "pad", "plan", "alibi", "sinks", "mix"};
  Settings settings;
  size_t at = 0;
  while (at < text.size()) {
    const size_t comma = std::min(text.find(',', at), text.size());
    const std::string pair = text.substr(at, comma - at);
    const size_t equals = pair.find('=');
    const std::string key = pair.substr(0, equals);
    if (equals == std::string::npos ||
        std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown)) {
      std::fprintf(stderr, "bad shape: %s\n", pair.c_str());
      std::exit(2);
    }
    settings.values[key] = pair.substr(equals + 1);
    at = comma + 1;
  }
  return settings;
}

struct Options {
  bool check = false, time = true;
  Data data = Data::kNormal;
  const char* data_name = "normal";
  std::string tensors;  // prefix of files to take the elements from
  int reps = 25, idle_ms = 150;
  uint64_t seed = 0;
};

// Lengths of a ragged batch: log-uniform 64 to 8192, or uniform 100 to 499.
std::vector<int64_t> Lengths(const std::string& kind, int64_t count) {
  std::mt19937_64 random(
      12345);  // fixed: the work must be the same in every run and for every peer
  std::uniform_real_distribution<double> unit(0, 1);
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < count; ++i) {
    const double u = unit(random);
    lengths.push_back(kind == "log" ? static_cast<int64_t>(64 * std::pow(2.0, 7 * u))
                                    : static_cast<int64_t>(100 + 400 * u));
  }
  return lengths;
}

class Bench {
 public:
  Bench(const Settings& settings, const Options& options) : s_(settings), options_(options) {
    bf16_ = s_.Text("type", "bf16") == "bf16";
    const std::string ragged = s_.Text("ragged", "");
    const int64_t batch = s_.Int("b", 1);
    std::vector<int64_t> q_lengths, k_lengths;
    if (ragged.empty()) {
      q_lengths.assign(batch, s_.Int("sq", 512));
      k_lengths.assign(batch, s_.Int("sk", s_.Int("sq", 512)));
    } else {
      q_lengths = k_lengths = Lengths(ragged, batch);
    }
    hq_ = s_.Int("hq", 16);
    hk_ = s_.Int("hk", hq_);
    d_ = s_.Int("d", 128);
    dv_ = s_.Int("dv", d_);
    const int64_t pad = s_.Int("pad", 0);
    int64_t total_q = 0, total_k = 0;
    for (int64_t i = 0; i < batch; ++i) {
      total_q += q_lengths[i] + pad;
      total_k += k_lengths[i] + pad;
    }
    q_ = Allocate(total_q * hq_ * d_ * 2);
    k_ = Allocate(total_k * hk_ * d_ * 2);
    v_ = Allocate(total_k * hk_ * dv_ * 2);
    o_ = Allocate(total_q * hq_ * dv_ * 2);
    o_bytes_ = total_q * hq_ * dv_ * 2;
    lse_ = static_cast<float*>(Allocate(total_q * hq_ * 4));
    lse_bytes_ = total_q * hq_ * 4;
    slopes_ = static_cast<float*>(Allocate(hq_ * 4));
    std::vector<float> slopes(hq_);
    for (int64_t h = 0; h < hq_; ++h) slopes[h] = 0.02f * static_cast<float>(h % 7);
    CHECK_CUDA(cudaMemcpy(slopes_, slopes.data(), hq_ * 4, cudaMemcpyHostToDevice));
    int64_t at_q = 0, at_k = 0;
    for (int64_t i = 0; i < batch; ++i) {
      AttentionTask task = MakeTask(at_q, at_k, q_lengths[i], k_lengths[i], pad, i);
      Fill(task.q, task.seqlen_q, Mix(options.seed + 3 * i), Tensor::kQ);
      Fill(task.k, task.seqlen_k, Mix(options.seed + 3 * i + 1), Tensor::kK);
      Fill(task.v, task.seqlen_k, Mix(options.seed + 3 * i + 2), Tensor::kV);
      tasks_.push_back(task);
      flops_ += Flops(task);
      kv_bytes_ += static_cast<double>(task.seqlen_k * hk_ * (d_ + dv_) * 2);
      at_q += q_lengths[i] + pad;
      at_k += k_lengths[i] + pad;
    }
    cudaDeviceProp properties;
    CHECK_CUDA(cudaGetDeviceProperties(&properties, 0));
    family_ = MakeSm90Family(properties.multiProcessorCount);
    if (family_ == nullptr) {
      std::fprintf(stderr, "the driver cannot encode tensor maps\n");
      std::exit(2);
    }
    for (const AttentionTask& task : tasks_) {
      if (!Validate(task).ok() || !family_->Accepts(task)) {
        std::fprintf(stderr, "not accepted\n");
        std::exit(2);
      }
    }
    CHECK_CUDA(cudaStreamCreate(&stream_));
  }

  ~Bench() {
    cudaDeviceSynchronize();
    for (void* memory : memory_) cudaFree(memory);
    if (host_ != nullptr) cudaFreeHost(host_);
    cudaStreamDestroy(stream_);
  }

  bool Run(const std::string& name) {
    Plan();
    CHECK_CUDA(cudaMemset(o_, 0xff, o_bytes_));
    CHECK_CUDA(cudaMemset(lse_, 0xff, lse_bytes_));
    Upload();
    Launch();
    CHECK_CUDA(cudaDeviceSynchronize());
    std::printf("{\"shape\": \"%s\", \"data\": \"%s\"", name.c_str(), options_.data_name);
    bool good = true;
    if (options_.check) good = bf16_ ? Compare<__nv_bfloat16>() : Compare<__half>();
    if (options_.time) Time();
    std::printf("}\n");
    std::fflush(stdout);
    return good;
  }

 private:
  void* Allocate(int64_t bytes) {
    void* memory = nullptr;
    CHECK_CUDA(cudaMalloc(&memory, std::max<int64_t>(bytes, 256)));
    memory_.push_back(memory);
    return memory;
  }

  AttentionTask MakeTask(int64_t at_q, int64_t at_k, int64_t sq, int64_t sk, int64_t pad,
                         int64_t i) {
    const DType dtype = bf16_ ? DType::kBF16 : DType::kF16;
    const int64_t mix = s_.Int("mix", 0);
    const int64_t share = mix == 2 && i % 4 >= 2 ? 2 : 1;
    const auto view = [&](void* base, int64_t at, int64_t rows, int64_t heads, int64_t columns) {
      return TensorView::Contiguous(static_cast<char*>(base) + at * heads * columns * 2, dtype,
                                    MemoryKind::kDevice, rows, heads / share, columns);
    };
    AttentionTask task;
    task.q = view(q_, at_q, sq + pad, hq_, d_);
    task.k = view(k_, at_k, sk + pad, hk_, d_);
    task.v = view(v_, at_k, sk + pad, hk_, dv_);
    task.o = view(o_, at_q, sq + pad, hq_, dv_);
    task.lse = {lse_ + at_q * hq_, MemoryKind::kDevice, sq + pad};
    task.seqlen_q = sq;
    task.seqlen_k = sk;
    task.softmax_scale =
        static_cast<float>(s_.Real("scale", 1.0 / std::sqrt(static_cast<double>(d_))));
    task.softcap = static_cast<float>(s_.Real("softcap", 0));
    task.mask.causal = s_.Int("causal", 0) != 0;
    if (s_.values.count("left") != 0) task.mask.window_left = s_.Int("left", 0);
    if (s_.values.count("right") != 0) task.mask.window_right = s_.Int("right", 0);
    if (s_.Int("alibi", 0) != 0) task.alibi_slopes = {slopes_, MemoryKind::kDevice};
    if (s_.Int("sinks", 0) != 0) task.sinks = {slopes_, MemoryKind::kDevice};
    if (mix != 0) {
      task.mask.causal = i % 2 == 1;
      task.softmax_scale *= 1.0f + 0.125f * static_cast<float>(i % 4);
    }
    return task;
  }

  void Fill(const TensorView& view, int64_t live, uint64_t seed, Tensor tensor) {
    if (view.rows == 0) return;
    if (!options_.tensors.empty()) {
      static const char* const kSuffixes[] = {"_q.npy", "_k.npy", "_v.npy"};
      NpyHalf file;
      const std::vector<__half> elements =
          ReadNpy(options_.tensors + kSuffixes[static_cast<int>(tensor)], &file);
      __half* memory = static_cast<__half*>(Allocate(elements.size() * 2));
      CHECK_CUDA(cudaMemcpy(memory, elements.data(), elements.size() * 2, cudaMemcpyHostToDevice));
      const auto fill = [&](auto* out) {
        FillFrom<<<1024, 256>>>(out, view.rows, live, view.heads, view.columns, file, memory);
      };
      bf16_ ? fill(static_cast<__nv_bfloat16*>(view.data)) : fill(static_cast<__half*>(view.data));
    } else if (bf16_) {
      FillRandom<<<1024, 256>>>(static_cast<__nv_bfloat16*>(view.data), view.rows, live, view.heads,
                                view.columns, seed, options_.data, tensor);
    } else {
      FillRandom<<<1024, 256>>>(static_cast<__half*>(view.data), view.rows, live, view.heads,
                                view.columns, seed, options_.data, tensor);
    }
    CHECK_CUDA(cudaGetLastError());
  }

  static DeviceTask Place(const AttentionTask& task) {
    DeviceTask placed = {};
    placed.q = task.q.data;
    placed.k = task.k.data;
    placed.v = task.v.data;
    placed.o = task.o.data;
    placed.lse = task.lse.data;
    placed.alibi_slopes = task.alibi_slopes.data;
    placed.sinks = task.sinks.data;
    placed.q_row_stride = task.q.row_stride;
    placed.q_head_stride = task.q.head_stride;
    placed.k_row_stride = task.k.row_stride;
    placed.k_head_stride = task.k.head_stride;
    placed.v_row_stride = task.v.row_stride;
    placed.v_head_stride = task.v.head_stride;
    placed.o_row_stride = task.o.row_stride;
    placed.o_head_stride = task.o.head_stride;
    placed.lse_head_stride = task.lse.head_stride;
    placed.seqlen_q = task.seqlen_q;
    placed.seqlen_k = task.seqlen_k;
    placed.padded_q = task.padded_q();
    placed.window_left = task.mask.window_left.value_or(kUnbounded);
    placed.window_right = task.mask.causal ? 0 : task.mask.window_right.value_or(kUnbounded);
    placed.heads_q = static_cast<int32_t>(task.heads_q());
    placed.heads_k = static_cast<int32_t>(task.heads_k());
    placed.head_dim = static_cast<int32_t>(task.head_dim());
    placed.head_dim_v = static_cast<int32_t>(task.head_dim_v());
    placed.element = task.dtype() == DType::kBF16 ? Element::kBF16 : Element::kF16;
    placed.softmax_scale = task.softmax_scale;
    placed.softcap = task.softcap;
    return placed;
  }

  void Plan() {
    size_ = family_->Measure(tasks_);
    if (upload_ != nullptr) return;
    upload_ = static_cast<std::byte*>(Allocate(size_.upload_bytes));
    workspace_ = static_cast<std::byte*>(Allocate(size_.workspace_bytes));
    CHECK_CUDA(cudaMemset(workspace_, 0xff, size_.workspace_bytes));
    CHECK_CUDA(cudaMallocHost(&host_, size_.upload_bytes));
  }
  void Upload() {
    placed_.clear();
    for (const AttentionTask& task : tasks_) placed_.push_back(Place(task));
    family_->Fill(tasks_, placed_, static_cast<std::byte*>(host_), upload_, workspace_);
    CHECK_CUDA(
        cudaMemcpyAsync(upload_, host_, size_.upload_bytes, cudaMemcpyHostToDevice, stream_));
  }
  void Launch() {
    launches_.clear();
    CHECK_CUDA(family_->Launch(stream_, &launches_));
  }

  template <class T>
  bool Compare() {
    double* squares = static_cast<double*>(Allocate(16));
    int* maxima = static_cast<int*>(Allocate(8));
    CHECK_CUDA(cudaMemset(squares, 0, 16));
    CHECK_CUDA(cudaMemset(maxima, 0, 8));
    const int64_t step = std::max<int64_t>(1, static_cast<int64_t>(tasks_.size()) / 24);
    for (size_t i = 0; i < tasks_.size(); i += step) {
      const AttentionTask& task = tasks_[i];
      const int64_t rows = task.padded_q() * task.heads_q();
      if (rows == 0) continue;
      const int64_t samples =
          std::min<int64_t>(rows * 4, std::max<int64_t>(512 * step / tasks_.size(), 48));
      Reference reference{task, task.mask.window_left.value_or(kUnbounded),
                          task.mask.causal ? 0 : task.mask.window_right.value_or(kUnbounded)};
      CompareRow<T><<<static_cast<unsigned>(samples), 256, 1024 * 8>>>(reference, options_.seed + i,
                                                                       squares, maxima);
      CHECK_CUDA(cudaGetLastError());
    }
    double host_squares[2];
    float host_maxima[2];
    CHECK_CUDA(cudaMemcpy(host_squares, squares, 16, cudaMemcpyDeviceToHost));
    CHECK_CUDA(cudaMemcpy(host_maxima, maxima, 8, cudaMemcpyDeviceToHost));
    const double relative =
        host_squares[1] > 0 ? std::sqrt(host_squares[0] / host_squares[1]) : host_squares[0];
    const bool good =
        relative < (bf16_ ? 6e-3 : 1e-3) && host_maxima[1] < 1e-4f && host_maxima[0] < 1e29f;
    std::printf(
        ", \"o_relative_error\": %.2e, \"o_max_error\": %.2e, \"lse_error\": %.2e, \"good\": %s",
        relative, host_maxima[0], host_maxima[1], good ? "true" : "false");
    return good;
  }

  void Time() {
    const bool plan = s_.Int("plan", 0) != 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(options_.idle_ms));
    std::vector<cudaEvent_t> events(2 * options_.reps);
    for (cudaEvent_t& event : events) CHECK_CUDA(cudaEventCreate(&event));
    for (int i = 0; i < 5; ++i) Launch();
    std::vector<float> times;
    double host_us = 0;
    for (int i = 0; i < options_.reps; ++i) {
      if (plan) CHECK_CUDA(cudaStreamSynchronize(stream_));
      CHECK_CUDA(cudaEventRecord(events[2 * i], stream_));
      if (plan) {
        const auto start = std::chrono::steady_clock::now();
        Plan();
        Upload();
        host_us +=
            std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
                .count();
      }
      Launch();
      CHECK_CUDA(cudaEventRecord(events[2 * i + 1], stream_));
    }
    CHECK_CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < options_.reps; ++i) {
      float ms = 0;
      CHECK_CUDA(cudaEventElapsedTime(&ms, events[2 * i], events[2 * i + 1]));
      times.push_back(ms);
    }
    for (cudaEvent_t event : events) cudaEventDestroy(event);
    std::sort(times.begin(), times.end());
    const double seconds = times[times.size() / 2] * 1e-3;
    std::printf(", \"us\": %.1f, \"min_us\": %.1f, \"tflops\": %.1f, \"kv_gbps\": %.0f",
                seconds * 1e6, times[0] * 1e3, flops_ / seconds * 1e-12,
                kv_bytes_ / seconds * 1e-9);
    if (plan) std::printf(", \"host_us\": %.1f", host_us / options_.reps);
  }

  const Settings s_;
  const Options options_;
  bool bf16_ = true;
  int64_t hq_ = 0, hk_ = 0, d_ = 0, dv_ = 0;
  void *q_ = nullptr, *k_ = nullptr, *v_ = nullptr, *o_ = nullptr;
  float *lse_ = nullptr, *slopes_ = nullptr;
  int64_t o_bytes_ = 0, lse_bytes_ = 0;
  double flops_ = 0, kv_bytes_ = 0;
  std::vector<AttentionTask> tasks_;
  std::vector<DeviceTask> placed_;
  std::unique_ptr<ForwardFamily> family_;
  LaunchSize size_;
  std::byte *upload_ = nullptr, *workspace_ = nullptr;
  void* host_ = nullptr;
  cudaStream_t stream_ = nullptr;
  std::vector<KernelLaunches> launches_;
  std::vector<void*> memory_;
};

int Main(int argc, char** argv) {
  Options options;
  options.seed = std::random_device{}();
  std::vector<std::string> shapes;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const auto value = [&] { return i + 1 < argc ? argv[++i] : ""; };
    if (argument == "--check") {
      options.check = true;
    } else if (argument == "--no-time") {
      options.time = false;
    } else if (argument == "--reps") {
      options.reps = std::max(1, std::atoi(value()));
    } else if (argument == "--idle") {
      options.idle_ms = std::atoi(value());
    } else if (argument == "--seed") {
      options.seed = std::strtoull(value(), nullptr, 10);
    } else if (argument == "--tensors") {
      options.tensors = value();
      options.data_name = "tensors";
    } else if (argument == "--data") {
      static const char* const kNames[] = {"normal", "rising", "falling",
                                           "equal",  "late",   "negative"};
      const std::string name = value();
      const auto it = std::find(std::begin(kNames), std::end(kNames), name);
      if (it == std::end(kNames)) return 2;
      options.data = static_cast<Data>(it - std::begin(kNames));
      options.data_name = *it;
    } else {
      shapes.push_back(argument);
    }
  }
  std::fprintf(stderr, "seed %llu\n", static_cast<unsigned long long>(options.seed));
  bool good = true;
  for (const std::string& shape : shapes) good = Bench(Parse(shape), options).Run(shape) && good;
  return good ? 0 : 1;
}

}  // namespace
}  // namespace attend::cuda

int main(int argc, char** argv) { return attend::cuda::Main(argc, argv); }
