// Gauges of the engines, read at each scrape from their atomics.

#ifndef ATTEND_SERVER_OPS_ENGINE_METRICS_H_
#define ATTEND_SERVER_OPS_ENGINE_METRICS_H_

#include <vector>

#include "prometheus/metric_family.h"
#include "server/engine/engine_group.h"
#include "server/engine/engine_options.h"

namespace attend {

void CollectEngines(const EngineGroup& engines, const EngineOptions& options,
                    std::vector<prometheus::MetricFamily>* families);

}  // namespace attend

#endif  // ATTEND_SERVER_OPS_ENGINE_METRICS_H_
