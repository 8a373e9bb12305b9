#include "collect/collect_report.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/formatted.h"
#include "base/log.h"
#include "base/parallel_tasks.h"
#include "statistics/layer_fields.h"
#include "statistics/spectrum.h"

namespace oscar {

void describe_layer(const LayerMoments& moments, std::int64_t layer, LayerReport& report) {
  const Spectrum q = Spectrum::of(moments.q_gram.mean(0)), o = Spectrum::of(moments.o_gram.mean(0));
  report.layer = layer;
  report.q_trace = q.trace;
  report.q_top8 = q.top8;
  report.o_trace = o.trace;
  report.o_top8 = o.top8;
}

void print_layer(const LayerReport& r, std::int64_t layers) {
  log_detail(formatted("layer %3lld/%lld %9.0f tokens/s  Q^T Q %.2e, top 8 %5.1f%%  V^T S^T S V %.2e, top 8 %5.1f%%",
                       static_cast<long long>(r.layer + 1), static_cast<long long>(layers), r.tokens_per_second,
                       r.q_trace, 100 * r.q_top8, r.o_trace, 100 * r.o_top8));
}

double drop_empty_far_pairs(Statistics& s) {
  if (!s.layers.front().far_count.defined()) return 0;
  // A layer with a sliding window shorter than the recent window has no such pairs; the other layers decide.
  double queries = 0;
  for (const LayerMoments& m : s.layers) queries = std::max(queries, m.far_count[0].item<double>());
  if (queries > 0.0) return queries;
  for (LayerMoments& m : s.layers)
    for (const MetricField& field : kFarPairFields) m.*field.tensor = at::Tensor();
  return 0;
}

void describe_whole(const Statistics& whole, CollectReport& report) {
  report.far_queries = 0;
  parallel_tasks(std::ssize(whole.layers), [&](std::int64_t place) {
    const auto i = static_cast<std::size_t>(place);
    describe_layer(whole.layers[i], report.layers[i].layer, report.layers[i]);
  });
  for (const LayerMoments& m : whole.layers) {
    if (m.far_count.defined()) report.far_queries = std::max(report.far_queries, m.far_count[0].item<double>());
  }
}

}  // namespace oscar
