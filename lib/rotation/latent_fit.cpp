#include "rotation/latent_fit.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "base/errors.h"
#include "registry/registry.h"
#include "rotation/compose.h"
#include "rotation/eigen.h"
#include "rotation/side_moments.h"

namespace oscar {
namespace {

// [1, d, d] with zeros between the two parts.
at::Tensor apart(const at::Tensor& m, const LatentParts& parts) {
  at::Tensor out = at::zeros_like(m);
  for (const bool turned : {false, true}) {
    const std::int64_t first = turned ? parts.rank : 0, count = turned ? parts.rotated : parts.rank;
    const auto block = [&](const at::Tensor& x) { return x.narrow(1, first, count).narrow(2, first, count); };
    block(out).copy_(block(m));
  }
  return out;
}

double cost(const at::Tensor& covariance, const at::Tensor& metric) {
  return (covariance * metric).sum().item<double>();
}

}  // namespace

LatentParts latent_parts(const Statistics& s) {
  if (!s.metadata.is_object() || !s.metadata.contains("latent")) return {};
  const Json& json = s.metadata["latent"];
  const LatentParts parts{json_int(json, "rank", "latent", 0), json_int(json, "rotated", "latent", 0)};
  if (parts.rank < 1 || parts.rotated < 1 || parts.rank + parts.rotated != s.head_dim || s.kv_heads != 1) {
    throw InputError("the statistics tell of a latent of " + std::to_string(parts.rank) + " and " +
                     std::to_string(parts.rotated) +
                     " rotated channels, expected one KV head of the sum of both; found " + std::to_string(s.kv_heads) +
                     " of " + std::to_string(s.head_dim) + "; collect them again");
  }
  return parts;
}

void check_latent_options(const Statistics& s, const FitOptions& o) {
  if (latent_parts(s).rank == 0) return;
  const std::string why = ": latent attention keeps one vector for keys and values";
  if (o.key_widths != o.value_widths || o.key_profiles != o.value_profiles)
    throw UsageError("widths of keys and values differ" + why);
  if (o.clip == ClipMode::kFixed && o.key_clip != o.value_clip) {
    throw UsageError("clip ratios of keys and values differ" + why + "; pass the same twice");
  }
}

Statistics summed_statistics(const Statistics& s, const FitOptions& o) {
  const LatentParts parts = latent_parts(s);
  const double tokens = static_cast<double>(std::max<std::int64_t>(s.tokens, 1));
  Statistics out = s;
  for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
    LayerMoments& m = out.layers[layer];
    const bool centered = o.center != Center::kNone;
    const SideMoments key = side_moments(s, layer, Side::kKey, {ValueTarget::kOutput, o.metric, centered, false, {}});
    const SideMoments value =
        side_moments(s, layer, Side::kValue, {ValueTarget::kOutput, o.metric, centered, false, {}});
    // The mean is added back after the parts are separated; where rows are centered, it is subtracted again.
    at::Tensor varies = apart(key.covariance, parts);
    if (centered) varies = varies + key.mean.unsqueeze(2) * key.mean.unsqueeze(1);
    m.k_gram = varies * tokens;
    if (key.source == MetricSource::kFarPairs) {
      m.far_q_gram = apart(m.far_q_gram + m.far_v_weight, parts);
    } else {
      const double as_key = cost(key.covariance, key.metric), as_value = cost(key.covariance, value.metric);
      const double weight = as_value > 0.0 && as_key > 0.0 ? as_key / as_value : 1.0;
      m.q_gram = apart(key.metric + value.metric * weight, parts) * tokens;
    }
    // Shared vector: its rows before RoPE equal those after it, and its values are its keys.
    m.pre_k_gram = m.v_gram = m.k_gram, m.pre_k_sum = m.v_sum = m.k_sum, m.pre_q_gram = m.q_gram;
    m.far_pre_q_gram = m.far_q_gram, m.rows_v = m.rows_k;
  }
  return out;
}

SideTransform latent_rotation(const at::Tensor& target, const LatentParts& parts, std::int64_t layer,
                              c10::Device device, at::Tensor& vectors) {
  const std::int64_t d = target.size(-1);
  at::Tensor forward = at::zeros({1, d, d}, at::kDouble), basis = at::zeros({1, d, d}, at::kDouble);
  std::vector<at::Tensor> values;
  for (const bool turned : {false, true}) {
    const std::int64_t first = turned ? parts.rank : 0, count = turned ? parts.rotated : parts.rank;
    const std::string name = "layers." + std::to_string(layer) + (turned ? " rotated channels" : " latent");
    const auto block = [&](const at::Tensor& x) { return x.narrow(1, first, count).narrow(2, first, count); };
    const SymmetricEigen eigen = symmetric_eigen(block(target).contiguous(), {name}, device);
    block(forward).copy_(compose_rotation(eigen.vectors));
    block(basis).copy_(eigen.vectors);
    values.push_back(eigen.values[0]);
  }
  const auto [sorted, order] = at::sort(at::cat(values));
  vectors = basis.index_select(2, order);
  SideTransform side;
  side.forward = forward.to(at::kFloat).contiguous();
  side.eigenvalues = sorted.clamp_max(std::numeric_limits<float>::max()).to(at::kFloat).unsqueeze(0).contiguous();
  side.clip = {0.0f};
  return side;
}

SideTransform as_value_side(const SideTransform& key) {
  SideTransform value = key;
  if (key.query_side.defined()) value.inverse = key.query_side.transpose(1, 2).contiguous();
  value.query_side = at::Tensor();
  return value;
}

}  // namespace oscar
