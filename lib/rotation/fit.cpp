#include "rotation/fit.h"

#include <ATen/ATen.h>

#include "base/errors.h"
#include "rotation/eigen.h"
#include "rotation/fit_rows.h"
#include "rotation/for_each_head.h"
#include "rotation/predict.h"
#include "rotation/transforms.h"

namespace oscar {
namespace {

constexpr std::int64_t kFewestRows = 16;  // in each half; below that a search would fit noise

void check_options(const Statistics& s, const FitOptions& o) {
  if (s.head_dim > kMaxHeadDim) {
    throw InputError("head_dim " + std::to_string(s.head_dim) + " is beyond the codec's " +
                     std::to_string(kMaxHeadDim));
  }
  if (o.group < 0 || (o.group > 0 && s.head_dim % o.group != 0)) {
    throw UsageError("group " + std::to_string(o.group) + " does not divide head_dim " + std::to_string(s.head_dim));
  }
  const auto ratio = [](float rho) { return rho >= 0.0f && rho <= 1.0f; };
  if (o.clip == ClipMode::kFixed && (!ratio(o.key_clip) || !ratio(o.value_clip))) {
    throw UsageError("a clip ratio lies between 0 (off) and 1");
  }
}

// One side of all layers: targets, eigenvectors, transforms.
struct FittedSide {
  std::vector<at::Tensor> heads;    // [layer] [Hkv, d, d] each head's own moment
  std::vector<at::Tensor> vectors;  // [layer] [S, d, d]; undefined when data-free
  std::vector<SideTransform> transforms;
};

FittedSide fit_side(const Statistics& s, const FitOptions& o, Side side, std::vector<std::string>& warnings) {
  const TransformKind& kind = find_transform(o.method);
  FittedSide result;
  std::vector<at::Tensor> targets;
  std::vector<std::string> names;
  for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
    result.heads.push_back(head_moments(s, layer, side, o.value_target));
    targets.push_back(scope_moments(result.heads.back(), o.scope));
    for (std::string& name :
         target_names(static_cast<std::int64_t>(layer), side, o.value_target, o.scope, s.kv_heads)) {
      names.push_back(std::move(name));
    }
  }
  SymmetricEigen eigen;
  const at::Tensor all = at::cat(targets);  // [L S, d, d]
  if (!kind.data_free) {
    const at::Tensor traces = all.diagonal(0, -2, -1).sum(-1);
    for (std::int64_t n = 0; n < all.size(0); ++n) {
      if (traces[n].item<double>() == 0.0) {
        warnings.push_back(names[static_cast<std::size_t>(n)] + ": is all zero; its rotation is the Hadamard matrix");
      }
    }
    eigen = symmetric_eigen(all, names, o.device);
  }
  const std::int64_t each = targets.front().size(0);
  for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
    SideInput input{side, targets[layer], {}, {}};
    if (!kind.data_free) {
      input.values = eigen.values.narrow(0, static_cast<std::int64_t>(layer) * each, each);
      input.vectors = eigen.vectors.narrow(0, static_cast<std::int64_t>(layer) * each, each);
    }
    result.vectors.push_back(input.vectors);
    result.transforms.push_back(kind.build(input));
  }
  return result;
}

void set_clip(std::vector<SideTransform>& transforms, float rho) {
  for (SideTransform& transform : transforms) {
    for (float& clip : transform.clip) clip = rho;
  }
}

void note_rank(const Statistics& s, std::vector<std::string>& warnings) {
  if (s.tokens < s.head_dim) {
    warnings.push_back("the statistics hold " + std::to_string(s.tokens) + " tokens, fewer than head_dim " +
                       std::to_string(s.head_dim) +
                       ": directions that never occurred are in arbitrary order; collect "
                       "a few thousand tokens");
  }
}

// Predictions of all layers, heads in parallel.
void predict(const Statistics& s, const FitOptions& o, const std::vector<LayerRows>& rows, const RowCode& code,
             FitResult& result) {
  for (const Side side : {Side::kKey, Side::kValue}) {
    const float global = side == Side::kKey ? result.global_key_clip : result.global_value_clip;
    std::vector<std::vector<PredictionSums>> sums(s.layers.size(),
                                                  std::vector<PredictionSums>(static_cast<std::size_t>(s.kv_heads)));
    for_each_head(s.layers.size(), s.kv_heads, o.on_step, [&](std::size_t layer, std::int64_t head) {
      const LayerTransform& transform = result.layers[layer].transform;
      const HeadProblem problem = make_problem(s, layer, head, rows[layer].held_out, code, o.encoder);
      sums[layer][static_cast<std::size_t>(head)] =
          predict_head(problem, side, side == Side::kKey ? transform.key : transform.value, head, global);
    });
    for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
      PredictionSums total;
      for (const PredictionSums& head : sums[layer]) total += head;
      (side == Side::kKey ? result.layers[layer].key : result.layers[layer].value) = total.relative();
    }
  }
}

}  // namespace

std::int64_t fit_steps(const Statistics& s, const FitOptions& o) {
  const std::int64_t heads = static_cast<std::int64_t>(s.layers.size()) * s.kv_heads;
  const std::int64_t held_out = split_rows(s, 0, o.sink, o.max_rows).held_out.tokens();
  return (o.clip == ClipMode::kSearch && held_out >= kFewestRows ? 2 * heads : 0) + (held_out > 0 ? 2 * heads : 0);
}

FitResult fit(const Statistics& s, const FitOptions& o) {
  const TransformKind& kind = find_transform(o.method);
  check_moments(s);
  check_options(s, o);
  const RowCode code = uniform_code(static_cast<int>(s.head_dim), static_cast<int>(o.group));
  FitResult result;
  if (!kind.data_free) note_rank(s, result.warnings);
  FittedSide key = fit_side(s, o, Side::kKey, result.warnings);
  FittedSide value = fit_side(s, o, Side::kValue, result.warnings);

  std::vector<LayerRows> rows;
  for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
    rows.push_back(split_rows(s, layer, o.sink, o.max_rows));
  }
  result.fit_rows = rows.front().fit.tokens();
  result.held_out_rows = rows.front().held_out.tokens();
  if (o.clip == ClipMode::kFixed) {
    set_clip(key.transforms, result.global_key_clip = o.key_clip);
    set_clip(value.transforms, result.global_value_clip = o.value_clip);
  } else if (o.clip == ClipMode::kSearch && result.held_out_rows >= kFewestRows) {
    for (FittedSide* side : {&key, &value}) {
      const bool is_key = side == &key;
      const ClipSearch search{is_key ? Side::kKey : Side::kValue, o.scope, is_key ? o.key_objective : o.value_objective,
                              code, o.encoder};
      const ClipChoice choice = search_clip(s, side->transforms, rows, search, o.on_step);
      for (std::size_t layer = 0; layer < s.layers.size(); ++layer) side->transforms[layer].clip = choice.layers[layer];
      (is_key ? result.global_key_clip : result.global_value_clip) = choice.global;
    }
  } else if (o.clip == ClipMode::kSearch) {
    result.warnings.push_back("the statistics hold " + std::to_string(result.fit_rows + result.held_out_rows) +
                              " sampled rows beyond the sink window, too few for a clip search (at least " +
                              std::to_string(2 * kFewestRows) + "): no clip is set; pass --clip K,V to set one");
  }

  for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
    LayerFit& out = result.layers.emplace_back();
    out.transform = {static_cast<std::int64_t>(layer), s.head_dim, s.kv_heads, key.transforms[layer],
                     value.transforms[layer]};
    out.key_energy = captured_energy(key.heads[layer], key.vectors[layer]);
    out.value_energy = captured_energy(value.heads[layer], value.vectors[layer]);
  }
  if (result.held_out_rows > 0) predict(s, o, rows, code, result);
  return result;
}

}  // namespace oscar
