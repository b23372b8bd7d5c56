// Making metric families by hand, for values that are read when scraped.
// Help texts are plain ASCII in one line: the serializer does not escape them.

#ifndef ATTEND_SERVER_OPS_METRIC_FAMILY_H_
#define ATTEND_SERVER_OPS_METRIC_FAMILY_H_

#include <string>
#include <utility>
#include <vector>

#include "prometheus/metric_family.h"

namespace attend {

using MetricLabels = std::vector<prometheus::ClientMetric::Label>;

inline prometheus::ClientMetric Sample(prometheus::MetricType type, MetricLabels labels,
                                       double value) {
  prometheus::ClientMetric sample;
  sample.label = std::move(labels);
  if (type == prometheus::MetricType::Counter) {
    sample.counter.value = value;
  } else {
    sample.gauge.value = value;
  }
  return sample;
}

inline prometheus::MetricFamily* AddFamily(std::vector<prometheus::MetricFamily>* families,
                                           prometheus::MetricType type, std::string name,
                                           std::string help) {
  families->push_back({std::move(name), std::move(help), type, {}});
  return &families->back();
}

inline void AddSingle(std::vector<prometheus::MetricFamily>* families, prometheus::MetricType type,
                      std::string name, std::string help, double value, MetricLabels labels = {}) {
  AddFamily(families, type, std::move(name), std::move(help))
      ->metric.push_back(Sample(type, std::move(labels), value));
}

}  // namespace attend

#endif  // ATTEND_SERVER_OPS_METRIC_FAMILY_H_
