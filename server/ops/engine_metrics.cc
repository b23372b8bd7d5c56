#include "server/ops/engine_metrics.h"

#include <string>

#include "server/ops/metric_family.h"

namespace attend {
namespace {

// One device's numbers; the label `device` is its ordinal, as in BatchRecord.
struct Sources {
  std::string device;
  EngineStats stats;
  DeviceMemoryStats memory;
  EngineOptions options;
};

struct Row {
  const char* name;
  const char* help;
  double (*value)(const Sources&);
};

double D(int64_t value) { return static_cast<double>(value); }

constexpr Row kRows[] = {
    {"attend_queue_requests", "Requests waiting for a worker.",
     [](const Sources& s) { return D(s.stats.queued_requests); }},
    {"attend_queue_tokens", "Query rows waiting for a worker.",
     [](const Sources& s) { return D(s.stats.queued_tokens); }},
    {"attend_queue_bytes", "Tensor bytes waiting for a worker.",
     [](const Sources& s) { return D(s.stats.queued_bytes); }},
    {"attend_in_flight_requests", "Requests accepted whose replies have not left yet.",
     [](const Sources& s) { return D(s.stats.in_flight_requests); }},
    {"attend_in_flight_bytes", "Staging bytes held by those requests.",
     [](const Sources& s) { return D(s.stats.in_flight_bytes); }},
    {"attend_queue_limit_requests", "Requests that may be in flight at once.",
     [](const Sources& s) { return D(s.options.max_in_flight_requests); }},
    {"attend_queue_limit_bytes", "Staging bytes that may be in flight at once.",
     [](const Sources& s) { return D(s.options.max_in_flight_bytes); }},
    {"attend_outstanding_flops", "Floating-point operations queued or running.",
     [](const Sources& s) { return s.stats.outstanding_flops; }},
    {"attend_healthy", "1 until the device reports an error that it cannot survive.",
     [](const Sources& s) { return s.stats.healthy ? 1.0 : 0.0; }},
    {"attend_pinned_memory_used_bytes", "Staging memory in use by requests.",
     [](const Sources& s) { return D(s.stats.staging_used_bytes); }},
    {"attend_pinned_memory_reserved_bytes", "Staging memory taken from the host.",
     [](const Sources& s) { return D(s.stats.staging_reserved_bytes); }},
    {"attend_pinned_memory_peak_bytes", "Most staging memory in use so far.",
     [](const Sources& s) { return D(s.stats.staging_peak_bytes); }},
    {"attend_pinned_memory_limit_bytes", "Most staging memory that may be taken.",
     [](const Sources& s) { return D(s.stats.staging_limit_bytes); }},
    {"attend_device_memory_used_bytes", "Device memory in use by batches.",
     [](const Sources& s) { return D(s.memory.used); }},
    {"attend_device_memory_reserved_bytes", "Device memory held by this process.",
     [](const Sources& s) { return D(s.memory.reserved); }},
    {"attend_device_memory_peak_bytes", "Most device memory in use by batches so far.",
     [](const Sources& s) { return D(s.memory.peak); }},
    {"attend_device_memory_limit_bytes", "Most device memory that may be held.",
     [](const Sources& s) { return D(s.memory.limit); }},
    {"attend_device_memory_total_bytes", "Memory of the device.",
     [](const Sources& s) { return D(s.memory.total); }},
    {"attend_device_memory_free_bytes", "Free memory of the device, all processes counted.",
     [](const Sources& s) { return D(s.memory.free); }},
};

}  // namespace

void CollectEngines(const EngineGroup& engines, const EngineOptions& options,
                    std::vector<prometheus::MetricFamily>* families) {
  using prometheus::MetricType;
  std::vector<Sources> sources;
  for (const std::unique_ptr<Engine>& engine : engines.engines()) {
    sources.push_back({std::to_string(engine->backend().device().ordinal), engine->stats(),
                       engine->backend().MemoryStats(), options});
  }
  for (const Row& row : kRows) {
    prometheus::MetricFamily* family = AddFamily(families, MetricType::Gauge, row.name, row.help);
    for (const Sources& source : sources) {
      family->metric.push_back(
          Sample(MetricType::Gauge, {{"device", source.device}}, row.value(source)));
    }
  }
  prometheus::MetricFamily* info = AddFamily(families, MetricType::Gauge, "attend_device_info",
                                             "1; its labels describe the device.");
  for (const std::unique_ptr<Engine>& engine : engines.engines()) {
    const DeviceInfo device = engine->backend().device();
    info->metric.push_back(Sample(MetricType::Gauge,
                                  {{"device", std::to_string(device.ordinal)},
                                   {"backend", std::string(engine->backend().name())},
                                   {"name", device.name},
                                   {"architecture", device.architecture}},
                                  1));
  }
}

}  // namespace attend
