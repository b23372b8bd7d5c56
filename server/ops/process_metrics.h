// The standard process_* metrics, read from /proc/self at each scrape.

#ifndef ATTEND_SERVER_OPS_PROCESS_METRICS_H_
#define ATTEND_SERVER_OPS_PROCESS_METRICS_H_

#include <vector>

#include "prometheus/metric_family.h"

namespace attend {

// Appends what could be read; never fails. Thread-safe.
void CollectProcess(std::vector<prometheus::MetricFamily>* families);

}  // namespace attend

#endif  // ATTEND_SERVER_OPS_PROCESS_METRICS_H_
