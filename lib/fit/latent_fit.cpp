#include "fit/latent_fit.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/errors.h"
#include "registry/registry.h"

namespace oscar {

void check_latent_options(const Statistics& s, const FitOptions& o) {
  if (s.rope_dim == 0) return;
  const std::string why = ": latent attention keeps one row for keys and values";
  if (o.key_profiles != o.value_profiles) throw UsageError("widths of keys and values differ" + why);
  if (o.center == Center::kKey) throw UsageError("--center key would center keys only" + why);
  if (o.clip == ClipMode::kFixed && o.key_clip != o.value_clip) {
    throw UsageError("clip ratios of keys and values differ" + why + "; pass the same twice");
  }
}

Statistics summed_statistics(const Statistics& s, const FitOptions& o) {
  Statistics out = s;
  const double tokens = static_cast<double>(std::max<std::int64_t>(s.tokens, 1));
  for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
    LayerMoments& m = out.layers[layer];
    const auto moments = [&](Side side) {
      return side_moments(s, layer, side,
                          {.value_target = ValueTarget::kOutput, .centered = o.center != Center::kNone});
    };
    const SideMoments key = moments(Side::kKey), value = moments(Side::kValue);
    if (has_far_pairs(s)) {
      m.far_pre_q_gram = m.far_q_gram = m.far_q_gram + m.far_v_weight;
      if (!fitted_method(o.method).metric_aware()) m.q_gram = m.far_q_gram;  // the target of method oscar
      continue;
    }
    const double as_key = (key.covariance * key.metric).sum().item<double>(),
                 as_value = (key.covariance * value.metric).sum().item<double>();
    const double weight = as_value > 0.0 && as_key > 0.0 ? as_key / as_value : 1.0;
    m.pre_q_gram = m.q_gram = (key.metric + value.metric * weight) * tokens;
  }
  return out;
}

}  // namespace oscar
