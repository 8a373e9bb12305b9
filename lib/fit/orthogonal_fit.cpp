#include "fit/layer_fits.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "fit/eigen.h"
#include "fit/for_each_head.h"
#include "fit/predict.h"
#include "fit/targets.h"
#include "registry/registry.h"
#include "statistics/statistics.h"
#include "transform/compose.h"
#include "transform/fixed_sides.h"

namespace oscar {
namespace {

// The input of a transform: one side of one layer. S = 1 (scope layer) or Hkv (scope head). All FP64.
struct SideInput {
  Side side = Side::kKey;
  at::Tensor target;   // [S, d, d] per-token moment of the eigenvectors below
  at::Tensor values;   // [S, d] eigenvalues, ascending
  at::Tensor vectors;  // [S, d, d] eigenvectors in columns
};

SideTransform eigenvector_side(const SideInput& input) {
  SideTransform side;
  side.forward = compose_rotation(input.vectors).to(at::kFloat).contiguous();
  // Eigenvalues are for people; values beyond FP32 are clamped.
  side.eigenvalues = input.values.clamp_max(std::numeric_limits<float>::max()).to(at::kFloat).contiguous();
  side.clip.assign(static_cast<std::size_t>(input.vectors.size(0)), 0.0f);
  return side;
}

// Without clip. Data-free transforms do not need `values` and `vectors`. kBalanced is made elsewhere (metric_fit.h).
SideTransform build_transform(MethodTransform transform, const SideInput& input) {
  switch (transform) {
    case MethodTransform::kIdentity:
      return identity_side(input.target.size(-1));
    case MethodTransform::kHadamard:
      return hadamard_side(input.target.size(-1));
    case MethodTransform::kEigenvectors:
      return eigenvector_side(input);
    case MethodTransform::kBalanced:
      break;
  }
  throw std::invalid_argument("the transform is not one of moments only");
}

// One side of all layers. S = 1 (scope layer) or Hkv.
struct OrthogonalSide {
  std::vector<at::Tensor> heads;    // [layer] [Hkv, d, d] each head's own moment
  std::vector<at::Tensor> vectors;  // [layer] [S, d, d]; undefined if data-free
  std::vector<SideTransform> transforms;
};

OrthogonalSide fit_side(const Statistics& s, const FitOptions& o, Side side, std::vector<std::string>& warnings) {
  const MethodRow& method = fitted_method(o.method);
  OrthogonalSide result;
  std::vector<at::Tensor> targets;
  std::vector<std::string> names;
  result.heads.resize(s.layers.size());
  targets.resize(s.layers.size());
  for_each_layer(s.layers.size(), [&](std::size_t layer) {
    result.heads[layer] = head_moments(s, layer, side, o.value_target);
    targets[layer] = scope_moments(result.heads[layer], o.scope);
  });
  for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
    for (std::string& name :
         target_names(static_cast<std::int64_t>(layer), side, o.value_target, o.scope, s.kv_heads)) {
      names.push_back(std::move(name));
    }
  }
  SymmetricEigen eigen;
  const at::Tensor all = at::cat(targets);  // [L S, d, d]
  if (!method.data_free()) {
    const at::Tensor traces = all.diagonal(0, -2, -1).sum(-1);
    for (std::int64_t n = 0; n < all.size(0); ++n) {
      if (traces[n].item<double>() == 0.0) {
        warnings.push_back(names[static_cast<std::size_t>(n)] + ": is all zero; its rotation is the Hadamard matrix");
      }
    }
    eigen = symmetric_eigen(all, names, o.device);
  }
  const std::int64_t each = targets.front().size(0);
  result.vectors.resize(s.layers.size());
  result.transforms.resize(s.layers.size());
  for_each_layer(s.layers.size(), [&](std::size_t layer) {
    SideInput input{side, targets[layer], {}, {}};
    if (!method.data_free()) {
      input.values = eigen.values.narrow(0, static_cast<std::int64_t>(layer) * each, each);
      input.vectors = eigen.vectors.narrow(0, static_cast<std::int64_t>(layer) * each, each);
    }
    result.vectors[layer] = input.vectors;
    result.transforms[layer] = build_transform(method.transform, input);
  });
  return result;
}

// Sets the mean of each head, for transforms that store centered rows; rotated: the mean of keys before RoPE.
void center(const Statistics& s, Side side, bool rotated, std::vector<SideTransform>& transforms) {
  const double tokens = static_cast<double>(std::max<std::int64_t>(s.tokens, 1));
  for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
    const LayerMoments& m = s.layers[layer];
    if (rotated) {
      transforms[layer].mean = pre_rope_key_mean(s, layer).to(at::kFloat).contiguous();
      transforms[layer].rotated_mean = true;
      continue;
    }
    transforms[layer].mean = ((side == Side::kKey ? m.k_sum : m.v_sum) / tokens).to(at::kFloat).contiguous();
  }
}

}  // namespace

void fit_orthogonal(const Statistics& s, const FitOptions& o, FitResult& result) {
  OrthogonalSide key = fit_side(s, o, Side::kKey, result.warnings);
  OrthogonalSide value = fit_side(s, o, Side::kValue, result.warnings);
  if (o.center != Center::kNone) center(s, Side::kKey, o.center == Center::kRope, key.transforms);
  if (o.center == Center::kMean || o.center == Center::kRope) center(s, Side::kValue, false, value.transforms);
  result.layers.resize(s.layers.size());
  for_each_layer(s.layers.size(), [&](std::size_t layer) {
    LayerFit& out = result.layers[layer];
    out.transform = {static_cast<std::int64_t>(layer), s.head_dim, s.kv_heads, key.transforms[layer],
                     value.transforms[layer]};
    out.key_energy = captured_energy(key.heads[layer], key.vectors[layer]);
    out.value_energy = captured_energy(value.heads[layer], value.vectors[layer]);
  });
}

}  // namespace oscar
