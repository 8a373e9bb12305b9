#include "fit/fit.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "base/errors.h"
#include "fit/clip_search.h"
#include "fit/fit_phases.h"
#include "fit/fit_rows.h"
#include "fit/for_each_head.h"
#include "fit/latent_fit.h"
#include "fit/layer_fits.h"
#include "fit/predict.h"
#include "registry/registry.h"
#include "transform/fixed_sides.h"

namespace oscar {
namespace {

constexpr std::int64_t kFewestRows = 16;  // per half; with fewer rows a search would fit noise

void check_options(const Statistics& s, const FitOptions& o) {
  if (s.head_dim > kMaxHeadDim) {
    throw InputError("head_dim " + std::to_string(s.head_dim) + " is beyond the codec's " +
                     std::to_string(kMaxHeadDim));
  }
  check_latent_options(s, o);
  if (o.quant_group < 0 || (o.quant_group > 0 && s.head_dim % o.quant_group != 0)) {
    throw UsageError("group " + std::to_string(o.quant_group) + " does not divide head_dim " +
                     std::to_string(s.head_dim));
  }
  const auto ratio = [](float rho) { return rho >= 0.0f && rho <= 1.0f; };
  const MethodRow& method = fitted_method(o.method);
  if (method.allocates_bits && s.head_dim % 32 != 0) {
    throw UsageError("block widths need a head_dim that 32 divides; found " + std::to_string(s.head_dim) +
                     ": fit with --method balanced");
  }
  if (method.allocates_bits && o.clip != ClipMode::kNone) {
    throw UsageError("block widths take no clip: pass --clip none");
  }
  for (const std::vector<Widths>* profiles : {&o.key_profiles, &o.value_profiles}) {
    const bool given = !o.key_profiles.empty() || !o.value_profiles.empty();
    if (given && (!method.allocates_bits || profiles->size() != s.layers.size())) {
      throw UsageError("chosen widths are for --method waterfill, and for all of its layers");
    }
  }
  if (o.context < 0) throw UsageError("--context " + std::to_string(o.context) + " is no number of tokens");
  if (s.rope_reach > 0 && o.context > s.rope_reach) {
    throw InputError("--context " + std::to_string(o.context) + " is beyond " + std::to_string(s.rope_reach) +
                     " tokens, up to which RoPE of this model has the frequencies of the statistics; collect them with "
                     "sequences of the length that is served, or pass a shorter --context");
  }
  if (o.center == Center::kRope && method.metric_aware() && o.context == 0) {
    throw UsageError("--center rope is fitted to the positions of a context: pass a --context above 0");
  }
  if (o.center == Center::kRope && s.rope_frequency.defined() && 2 * s.rope_frequency.size(0) != s.head_dim) {
    throw InputError("--center rope needs one rotary embedding over all channels of every layer, which " +
                     s.architecture + " does not have; fit with --center mean");
  }
  if (o.clip == ClipMode::kFixed && (!ratio(o.key_clip) || !ratio(o.value_clip))) {
    throw UsageError("a clip ratio lies between 0 (off) and 1");
  }
}

void note_rank(const Statistics& s, std::vector<std::string>& warnings) {
  if (s.tokens < s.head_dim) {
    warnings.push_back("the statistics hold " + std::to_string(s.tokens) + " tokens, fewer than head_dim " +
                       std::to_string(s.head_dim) +
                       ": directions that never occurred are in arbitrary order; collect a few thousand tokens");
  }
}

// Notes positions that the statistics do not cover. Keys are averaged over them; values and widths are not.
void note_distance(const Statistics& s, const FitOptions& o, std::vector<std::string>& warnings) {
  const std::int64_t seen = longest_distance(s);
  const std::int64_t served = fitted_method(o.method).metric_aware() ? o.context : default_context(s);
  if (seen == 0 || served <= seen + 1) return;
  warnings.push_back("the statistics saw keys up to " + std::to_string(seen) +
                     " tokens before their query, and contexts of " + std::to_string(served) +
                     " tokens will be served: collect with prompts packed to that length (--context, with as many "
                     "--tokens), or pass the --context that you serve");
}

SideTransform& side_of(LayerFit& layer, Side side) {
  return side == Side::kKey ? layer.transform.key : layer.transform.value;
}

// Sets one ratio of a side in all layers.
void set_clip(FitResult& result, Side side, float rho) {
  (side == Side::kKey ? result.global_key_clip : result.global_value_clip) = rho;
  for (LayerFit& layer : result.layers) {
    for (float& clip : side_of(layer, side).clip) clip = rho;
  }
}

// [side]: what errors of its rows cost.
using Costs = std::array<SideCosts, 2>;

void search_clips(const Statistics& s, const FitOptions& o, const std::vector<LayerRows>& rows, const Costs& costs,
                  const RowCode& code, FitResult& result) {
  const Timeline::Phase searching(o.timeline, phase::kClips);
  if (!result.far && !fitted_method(o.method).metric_aware()) {
    result.warnings.push_back(
        "the statistics hold no metrics of query-key pairs outside the windows: Q^T Q and W_O^T W_O weigh errors in "
        "the clip search, and all layers count alike for the one clip; collect again with sequences longer than both "
        "windows");
  }
  for (const Side side : {Side::kKey, Side::kValue}) {
    if (side == Side::kValue && s.rope_dim > 0) break;  // the same rows
    std::vector<SideTransform> transforms;
    for (LayerFit& layer : result.layers) transforms.push_back(side_of(layer, side));
    const ClipChoice choice = search_clip(s, transforms, rows, costs[static_cast<std::size_t>(side)],
                                          {side, o.scope, code, o.encoder}, o.on_step);
    for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
      side_of(result.layers[layer], side).clip = choice.layers[layer];
    }
    (side == Side::kKey ? result.global_key_clip : result.global_value_clip) = choice.one;
    if (o.one_clip) set_clip(result, side, choice.one);
  }
}

void choose_clips(const Statistics& s, const FitOptions& o, const std::vector<LayerRows>& rows, const Costs& costs,
                  const RowCode& code, FitResult& result) {
  if (o.clip == ClipMode::kFixed) {
    set_clip(result, Side::kKey, o.key_clip);
    set_clip(result, Side::kValue, o.value_clip);
  } else if (o.clip == ClipMode::kSearch && result.held_out_rows >= kFewestRows) {
    search_clips(s, o, rows, costs, code, result);
  } else if (o.clip == ClipMode::kSearch) {
    result.warnings.push_back("the statistics hold " + std::to_string(result.fit_rows + result.held_out_rows) +
                              " sampled rows beyond the sink window, too few for a clip search (at least " +
                              std::to_string(2 * kFewestRows) + "): no clip is set; pass --clip K,V to set one");
  }
}

// Latent attention: values are stored as their keys are.
void share_with_values(FitResult& result) {
  for (LayerFit& layer : result.layers) layer.transform.value = as_value_side(layer.transform.key);
  result.global_value_clip = result.global_key_clip;
}

// Predictions of all layers, heads in parallel.
void predict(const Statistics& s, const FitOptions& o, const std::vector<LayerRows>& rows, const Costs& both,
             const RowCode& code, FitResult& result) {
  const Timeline::Phase predicting(o.timeline, phase::kPredictions);
  for (const Side side : {Side::kKey, Side::kValue}) {
    const float one = side == Side::kKey ? result.global_key_clip : result.global_value_clip;
    const SideCosts& costs = both[static_cast<std::size_t>(side)];
    std::vector<std::vector<PredictionSums>> sums(s.layers.size(),
                                                  std::vector<PredictionSums>(static_cast<std::size_t>(s.kv_heads)));
    for_each_head(s.layers.size(), s.kv_heads, o.on_step, [&](std::size_t layer, std::int64_t head) {
      const LayerTransform& transform = result.layers[layer].transform;
      const SideTransform& own = side == Side::kKey ? transform.key : transform.value;
      HeadProblem problem = make_problem(s, layer, head, rows[layer].held_out, code, o.encoder);
      problem.metric = costs.metric[layer][head];
      sums[layer][static_cast<std::size_t>(head)] =
          predict_head(problem, side, own, head, own.code(s.head_dim, o.quant_group), own.blocks() ? 0.0f : one);
    });
    for (std::size_t layer = 0; layer < s.layers.size(); ++layer) {
      PredictionSums total;
      for (const PredictionSums& head : sums[layer]) total += head;
      SidePrediction& out = side == Side::kKey ? result.layers[layer].key : result.layers[layer].value;
      out = {
          total.identity.relative(), total.hadamard.relative(), total.unclipped.relative(), total.fit.relative(), 0, 0};
      if (!costs.far) continue;
      out.error = costs.cost(layer, total.fit, result.held_out_rows);
      out.one_clip_error = costs.cost(layer, total.one_clip, result.held_out_rows);
    }
  }
}

}  // namespace

std::int64_t default_context(const Statistics& s) {
  constexpr std::int64_t kMost = 131072;
  const std::int64_t reach = s.rope_reach > 0 ? s.rope_reach : kMost;
  return std::min({s.max_position, kMost, reach});
}

std::int64_t fit_steps(const Statistics& s, const FitOptions& o) {
  const std::int64_t heads = static_cast<std::int64_t>(s.layers.size()) * s.kv_heads;
  const std::int64_t held_out = split_rows(s, 0, o.sink, o.max_rows).held_out.tokens();
  return (o.clip == ClipMode::kSearch && held_out >= kFewestRows ? 2 * heads : 0) + (held_out > 0 ? 2 * heads : 0);
}

namespace {

// Up to here a layer is its index in the statistics; the model's numbers also count the other layers.
FitResult numbered(FitResult result, const Statistics& s) {
  for (std::size_t i = 0; i < result.layers.size(); ++i) result.layers[i].transform.layer = s.number(i);
  return result;
}

}  // namespace

FitResult fit(const Statistics& given, const FitOptions& o) {
  const MethodRow& method = fitted_method(o.method);
  const Timeline::Phase fitting(o.timeline, phase::kTransforms);
  check_options(given, o);
  const bool latent = given.rope_dim > 0;
  const Statistics summed = latent ? summed_statistics(given, o) : Statistics();
  const Statistics& s = latent ? summed : given;
  const RowCode code = uniform_code(static_cast<int>(s.head_dim), static_cast<int>(o.quant_group));
  FitResult result;
  result.far = has_far_pairs(s);
  if (!method.data_free()) note_rank(s, result.warnings);
  if (!method.data_free()) note_distance(s, o, result.warnings);
  if (method.metric_aware()) {
    fit_balanced(s, o, result);
  } else {
    fit_orthogonal(s, o, result);
  }

  std::vector<LayerRows> rows(s.layers.size());
  for_each_layer(rows.size(), [&](std::size_t layer) { rows[layer] = split_rows(s, layer, o.sink, o.max_rows); });
  result.fit_rows = rows.front().fit.tokens();
  result.held_out_rows = rows.front().held_out.tokens();
  const bool held_out = result.held_out_rows > 0;
  const auto costs_of = [&](const Statistics& from) {
    return Costs{side_costs(from, Side::kKey), side_costs(from, Side::kValue)};
  };
  const Costs costs = held_out ? costs_of(s) : Costs();  // no search without rows
  choose_clips(s, o, rows, costs, code, result);
  if (latent) share_with_values(result);
  if (held_out) predict(given, o, rows, latent ? costs_of(given) : costs, code, result);  // each side in its own metric
  return numbered(std::move(result), s);
}

}  // namespace oscar
