#include "fit/from_fit.h"

#include <cmath>

#include "bundle/calibration_hashes.h"
#include "bundle/manifest.h"
#include "fit/fit_rows.h"
#include "layout/left_out.h"
#include "registry/registry.h"
#include "transform/compose.h"

namespace oscar {
namespace {

// Six significant digits: enough to read, and stable against the last bit of a sum.
Json rounded(double value) {
  if (value == 0.0 || !std::isfinite(value)) return 0.0;
  const double unit = std::pow(10.0, 5.0 - std::floor(std::log10(std::abs(value))));
  return std::isfinite(unit) && unit > 0.0 ? std::round(value * unit) / unit : value;
}

Json energy_json(const CapturedEnergy& energy) {
  return {{"identity", rounded(energy.identity)}, {"fit", rounded(energy.fit)}};
}

Json prediction_json(const SidePrediction& p, bool comparable) {
  Json json = {{"identity", rounded(p.identity)},
               {"hadamard", rounded(p.hadamard)},
               {"unclipped", rounded(p.unclipped)},
               {"fit", rounded(p.fit)}};
  if (!comparable) return json;
  json["error"] = rounded(p.error);
  json["one_clip_error"] = rounded(p.one_clip_error);
  return json;
}

Json spectrum_json(const SideSpectrum& side, const SideTransform& transform) {
  Json lambda = Json::array();
  for (const double value : side.lambda) lambda.push_back(rounded(value));
  Json json = {{"lambda", std::move(lambda)},
               {"gain", rounded(side.gain)},
               {"condition", rounded(side.condition)},
               {"error", rounded(side.error)},
               {"share", rounded(side.share)}};
  if (transform.blocks()) json["widths"] = transform.widths;
  if (transform.refined) json["refined"] = true;
  return json;
}

Json report_json(const FitResult& result) {
  Json json;
  json["rows"] = {{"fit", result.fit_rows}, {"held_out", result.held_out_rows}};
  Json layers = Json::array();
  for (const LayerFit& layer : result.layers) {
    Json entry;
    entry["layer"] = layer.transform.layer;
    if (layer.key_spectrum.lambda.empty()) {
      entry["captured_energy"] = {{"key", energy_json(layer.key_energy)}, {"value", energy_json(layer.value_energy)}};
    } else {
      entry["spectrum"] = {{"key", spectrum_json(layer.key_spectrum, layer.transform.key)},
                           {"value", spectrum_json(layer.value_spectrum, layer.transform.value)}};
    }
    if (result.held_out_rows > 0) {
      entry["k_logit_error"] = prediction_json(layer.key, result.far);
      entry["v_output_error"] = prediction_json(layer.value, result.far);
    }
    layers.push_back(std::move(entry));
  }
  json["layers"] = std::move(layers);
  json["warnings"] = result.warnings;
  return json;
}

}  // namespace

Json fit_options_json(const Statistics& s, const FitOptions& o) {
  const char* metric = has_far_pairs(s) ? "far_pairs" : "moments";
  Json json;
  json["method"] = o.method;
  json["scope"] = o.scope == Scope::kHead ? "head" : "layer";
  json["value_target"] = value_target_name(o.value_target);
  switch (o.clip) {
    case ClipMode::kSearch:
      json["clip"] = {{"mode", "search"}, {"metric", metric}};
      if (o.one_clip) json["clip"]["one_for_all_layers"] = true;
      break;
    case ClipMode::kFixed:
      json["clip"] = {{"mode", "fixed"}, {"key", json_float(o.key_clip)}, {"value", json_float(o.value_clip)}};
      break;
    case ClipMode::kNone:
      json["clip"] = {{"mode", "none"}};
      break;
  }
  constexpr const char* kCenters[] = {"none", "key", "mean", "rope", "auto"};
  json["center"] = kCenters[static_cast<std::size_t>(o.center)];
  const MethodRow& method = fitted_method(o.method);
  if (method.metric_aware()) {
    json["metric"] = metric;
    json["damping"] = o.damping;
    json["exponent"] = 1.0;  // earlier versions could balance less
    json["context"] = o.context;
    if (method.allocates_bits) {
      json["bits"] = o.bits;
      json["allocate"] = o.allocate;
    }
  }
  json["group"] = o.quant_group > 0 ? o.quant_group : s.head_dim;
  json["max_rows"] = o.max_rows;
  return json;
}

Bundle bundle_from_fit(const Statistics& s, const FitOptions& o, const FitResult& result, const CacheWindows& windows,
                       const FitSource& source) {
  Bundle bundle;
  bundle.method = o.method;
  bundle.scope = o.scope == Scope::kHead ? "head" : "layer";
  bundle.model_fingerprint = s.model_fingerprint;
  bundle.model = {{"name", s.model_name},       {"architecture", s.architecture},
                  {"layers", s.model_layers()}, {"query_heads", s.query_heads},
                  {"kv_heads", s.kv_heads},     {"head_dim", s.head_dim},
                  {"hidden", s.hidden}};
  if (s.rope_dim > 0) {
    bundle.model["attention"] = "latent";
    bundle.model["latent_dim"] = s.head_dim;
    bundle.model["rope_dim"] = s.rope_dim;
  }
  if (!s.left_out.empty()) bundle.model["left_out"] = left_out_json(s.left_out);
  const Json facts = s.metadata.is_object() ? s.metadata.value("model", Json::object()) : Json::object();
  const std::string revision = json_string(facts, "revision", source.statistics_name, "");
  if (!revision.empty()) bundle.model["revision"] = revision;
  bundle.windows = windows;
  bundle.encoder = to_string(o.encoder);
  bundle.quant_group = o.quant_group;
  bundle.hadamard_block = hadamard_block(s.head_dim);
  bundle.global_key_clip = result.global_key_clip;
  bundle.global_value_clip = result.global_value_clip;
  for (const LayerFit& layer : result.layers) bundle.layers.push_back(layer.transform);
  Json collection = s.metadata;
  Json hashes = take_calibration_hashes(collection);
  if (source.text_hashes) bundle.calibration_hashes = std::move(hashes);
  if (source.check_rows) bundle.check_rows = check_rows_of(s);
  bundle.provenance = {{"tool", {{"name", "oscar-fit"}, {"version", source.tool_version}}},
                       {"statistics", {{"file", source.statistics_name}, {"sha256", source.statistics_sha256}}},
                       {"tokens", s.tokens},
                       {"longest_distance", longest_distance(s)},
                       {"options", fit_options_json(s, o)},
                       {"collection", std::move(collection)}};
  bundle.fit_report = report_json(result);
  return bundle;
}

}  // namespace oscar
