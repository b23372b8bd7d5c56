#include "server/ops/process_metrics.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

#include "server/ops/metric_family.h"

namespace attend {
namespace {

// Fields of /proc/self/stat after the command, which may hold anything but ends at the last ')'.
// Numbered as in proc(5): the first of them is field 3.
bool ReadStat(double* cpu_ticks, double* threads, double* start_ticks, double* virtual_bytes,
              double* resident_pages) {
  std::ifstream file("/proc/self/stat");
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t end = text.rfind(')');
  if (end == std::string::npos) return false;
  std::istringstream fields(text.substr(end + 1));
  std::string field;
  double user = 0, system = 0;
  for (int number = 3; fields >> field; ++number) {
    const double value = number == 3 ? 0 : std::strtod(field.c_str(), nullptr);
    if (number == 14) user = value;
    if (number == 15) system = value;
    if (number == 20) *threads = value;
    if (number == 22) *start_ticks = value;
    if (number == 23) *virtual_bytes = value;
    if (number == 24) {
      *resident_pages = value;
      *cpu_ticks = user + system;
      return true;
    }
  }
  return false;
}

// Seconds since the epoch at which the host started.
double BootTime() {
  std::ifstream file("/proc/stat");
  std::string key;
  double value = 0;
  while (file >> key) {
    if (key == "btime" && file >> value) return value;
    std::getline(file, key);
  }
  return 0;
}

int OpenFileDescriptors() {
  DIR* directory = opendir("/proc/self/fd");
  if (directory == nullptr) return -1;
  int count = -1;  // the one that lists
  // NOLINTNEXTLINE(concurrency-mt-unsafe): safe on a stream of one's own
  while (const dirent* entry = readdir(directory)) {
    if (entry->d_name[0] != '.') ++count;
  }
  closedir(directory);
  return count;
}

}  // namespace

void CollectProcess(std::vector<prometheus::MetricFamily>* families) {
  using prometheus::MetricType;
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  double cpu = 0, threads = 0, start = 0, virtual_bytes = 0, pages = 0;
  if (ReadStat(&cpu, &threads, &start, &virtual_bytes, &pages)) {
    AddSingle(families, MetricType::Counter, "process_cpu_seconds_total",
              "User and system CPU time spent.", cpu / ticks);
    AddSingle(families, MetricType::Gauge, "process_threads", "Threads of the process.", threads);
    AddSingle(families, MetricType::Gauge, "process_virtual_memory_bytes",
              "Virtual memory of the process.", virtual_bytes);
    AddSingle(families, MetricType::Gauge, "process_resident_memory_bytes",
              "Resident memory of the process.",
              pages * static_cast<double>(sysconf(_SC_PAGESIZE)));
    static const double boot_time = BootTime();
    if (boot_time > 0) {
      AddSingle(families, MetricType::Gauge, "process_start_time_seconds",
                "Start of the process, seconds since the epoch.", boot_time + start / ticks);
    }
  }
  if (const int open = OpenFileDescriptors(); open >= 0) {
    AddSingle(families, MetricType::Gauge, "process_open_fds", "Open file descriptors.", open);
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    AddSingle(families, MetricType::Gauge, "process_max_fds",
              "Most file descriptors that may be open.", static_cast<double>(limit.rlim_cur));
  }
}

}  // namespace attend
