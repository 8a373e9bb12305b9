#include "pipeline/verify/verify_source.h"

#include <algorithm>
#include <tuple>

#include "base/errors.h"
#include "base/hash.h"
#include "bundle/manifest.h"
#include "export/export_format.h"
#include "export/export_report.h"
#include "export/published.h"
#include "layout/left_out.h"
#include "pipeline/common/common_options.h"

namespace oscar {
namespace {

// 0.434, not 0.433999985.
double shortest(float rho) { return json_float(rho).get<double>(); }

// The ratio in every layer and head of a side; empty if they differ.
std::optional<double> one_clip(const Bundle& bundle, bool key) {
  const float first = (key ? bundle.layers.front().key : bundle.layers.front().value).clip.front();
  for (const LayerTransform& layer : bundle.layers) {
    for (const float rho : (key ? layer.key : layer.value).clip) {
      if (rho != first) return std::nullopt;
    }
  }
  return shortest(first);
}

// Calibration facts from a bundle's provenance; zeros for missing ones.
void add_calibration_facts(const Bundle& bundle, BundleFacts& facts) {
  const auto number = [](const Json& object, const char* name) {
    const auto found = object.is_object() ? object.find(name) : object.end();
    return object.is_object() && found != object.end() && found->is_number_unsigned() ? found->get<std::int64_t>()
                                                                                      : std::int64_t{0};
  };
  if (!bundle.provenance.is_object()) return;
  facts.calibration_tokens = number(bundle.provenance, "tokens");
  const Json collection = bundle.provenance.value("collection", Json::object());
  const Json parts = collection.is_object() ? collection.value("parts", Json::array()) : Json::array();
  if (!parts.is_array()) return;
  for (const Json& part : parts) {
    facts.longest_calibration = std::max(facts.longest_calibration, number(part, "longest_sequence"));
  }
}

BundleFacts facts_of(const Bundle& bundle) {
  BundleFacts facts{.method = bundle.method,
                    .scope = bundle.scope,
                    .encoder = bundle.encoder,
                    .model_fingerprint = bundle.model_fingerprint,
                    .key_clip = one_clip(bundle, true),
                    .value_clip = one_clip(bundle, false),
                    .longest_distance = longest_distance(bundle)};
  if (facts.key_clip && facts.value_clip) return facts;
  for (const LayerTransform& layer : bundle.layers) {
    LayerClip& clip = facts.layer_clips.emplace_back();
    clip.layer = layer.layer;
    for (const float rho : layer.key.clip) clip.key.push_back(shortest(rho));
    for (const float rho : layer.value.clip) clip.value.push_back(shortest(rho));
  }
  return facts;
}

Widths widths_of(const SideTransform& side) {
  Widths widths{};
  std::copy_n(side.widths.begin(), widths.size(), widths.begin()), widths.refined = side.refined;
  return widths;
}

// How a bundle's bit widths were allocated, and the prediction of its curves.
void add_allocation_facts(const Bundle& bundle, const fs::path& directory, BundleFacts& facts) {
  facts.prediction = prediction_of(bundle, directory.string());
  facts.curves = load_curves(directory, bundle);
  for (const LayerTransform& layer : bundle.layers) {
    if (!layer.key.blocks() || !layer.value.blocks()) return;
  }
  for (const LayerTransform& layer : bundle.layers) {
    facts.key_widths.push_back(widths_of(layer.key));
    facts.value_widths.push_back(widths_of(layer.value));
  }
}

std::string base_name(fs::path path) {
  if (path.filename().empty()) path = path.parent_path();  // "bundle/"
  return path.filename().string();
}

VerifySource load_bundle_source(const fs::path& directory, const std::string& form) {
  const Bundle fitted = load_bundle(directory);
  ServedForm served = form.empty() ? lossless_form(fitted) : served_form(fitted, form);
  VerifySource source;
  source.facts = facts_of(served.bundle);
  source.facts.kind = "bundle";
  source.facts.source = base_name(directory);
  source.facts.clip_source = "bundle";
  source.facts.served_as = served.format;
  source.facts.served_changes = served.changes;
  source.facts.sha256 = bundle_hashes(directory);
  add_calibration_facts(fitted, source.facts);
  if (served.changes.empty()) add_allocation_facts(fitted, directory, source.facts);
  source.bundle = std::move(served.bundle);
  return source;
}

// InputError if the bundle quantizes layers that the engine of a format keeps in BF16, such as windowed ones in vLLM:
// its numbers would not be those of the engine.
void refuse_bf16_layers(const Bundle& bundle, const std::string& source, const ExportFormat& format,
                        const ModelConfig& model) {
  std::vector<LeftOutLayer> kept;
  std::int64_t longest = 0;
  for (const LayerTransform& layer : bundle.layers) {
    const auto reason = format.bf16_reason(format, model, layer.layer);
    if (!reason) continue;
    kept.push_back({layer.layer, *reason, {}});
    longest = std::max(longest, model.span(layer.layer));
  }
  if (kept.empty()) return;
  throw InputError(source + ": " + format.id + " keeps " + left_out_text(kept) +
                   " in BF16, and the bundle quantizes them; fit with --windows " +
                   std::to_string(bundle.windows.sink) + "," + std::to_string(longest) +
                   ", which leaves such layers out, or evaluate all layers with --as transformers");
}

void set_clip(Bundle& bundle, float key, float value) {
  for (LayerTransform& layer : bundle.layers) {
    layer.key.clip = {key};
    layer.value.clip = {value};
  }
  bundle.global_key_clip = key;
  bundle.global_value_clip = value;
}

VerifySource load_published_source(const std::string& files, const std::string& clip, const std::string& form) {
  const auto [key, value] = split_pair(files, "--rotations", "K.pt,V.pt");
  float key_clip = kPublishedKeyClip, value_clip = kPublishedValueClip;
  if (!clip.empty()) std::tie(key_clip, value_clip) = parse_clip_pair(clip);
  VerifySource source;
  source.bundle = bundle_from_published(key, value);
  const std::string format = published_format(*source.bundle);
  if (!form.empty() && form != format) {
    throw UsageError("--as " + form + " is for --bundle; the files of --rotations are served as " + format);
  }
  const bool recorded = has_recorded_clip(*source.bundle);
  if (!clip.empty() || !recorded) set_clip(*source.bundle, key_clip, value_clip);
  source.facts = facts_of(*source.bundle);
  source.facts.kind = "published";
  source.facts.source = base_name(key) + "," + base_name(value);
  source.facts.clip_source = !clip.empty() ? "option" : recorded ? "file" : "default";
  source.facts.served_as = format;
  for (const std::string& file : {key, value}) {
    if (fs::is_regular_file(file)) source.facts.sha256[base_name(file)] = sha256_file(file);
  }
  return source;
}

}  // namespace

VerifySource load_verify_source(const SourceRequest& request, const Checkpoint* checkpoint) {
  if (!request.clip.empty() && request.rotations.empty()) {
    throw UsageError("--clip is for --rotations; a bundle carries its own");
  }
  VerifySource source;
  if (!request.bundle.empty()) source = load_bundle_source(request.bundle, request.form);
  if (!request.rotations.empty()) source = load_published_source(request.rotations, request.clip, request.form);
  if (!source.bundle && !request.form.empty()) throw UsageError("--as says how a bundle is served: it needs --bundle");
  if (source.bundle && checkpoint != nullptr) {
    const std::string fingerprint = checkpoint->fingerprint();
    const std::vector<std::string> faults = check_bundle_model(
        *source.bundle, checkpoint->config(), request.add_checkpoint ? source.bundle->model_fingerprint : fingerprint);
    if (!faults.empty()) throw InputError(source.facts.source + " does not belong to the model: " + faults.front());
    source.facts.fingerprint_matches = source.bundle->model_fingerprint == fingerprint;
    const ExportFormat* format = find_export_format(source.facts.served_as);
    if (format != nullptr && format->check_model != nullptr) format->check_model(*format, *checkpoint, *source.bundle);
    if (format != nullptr && format->bf16_reason != nullptr) {
      refuse_bf16_layers(*source.bundle, source.facts.source, *format, checkpoint->config());
    }
  }
  return source;
}

std::vector<std::string> check_verify_source(const VerifySource& source, const Checkpoint* checkpoint) {
  const Bundle& bundle = *source.bundle;
  const std::vector<std::string> faults = check_bundle(bundle);
  if (!faults.empty()) throw InputError(source.facts.source + ": " + faults.front());
  const LayerTransform& first = bundle.layers.front();
  std::vector<std::string> lines;
  lines.push_back("structure: method " + bundle.method + ", scope " + bundle.scope + ", " +
                  std::to_string(bundle.layers.size()) + " layers of head_dim " + std::to_string(first.head_dim));
  lines.push_back("served as: " + source.facts.served_as);
  for (const std::string& change : source.facts.served_changes) lines.push_back("  changed by that form: " + change);
  for (const auto& [name, hash] : source.facts.sha256) lines.push_back("sha256 of " + name + ": " + hash);
  lines.emplace_back("numbers: finite, K and V of equal shape, rotations orthogonal (max |M M^T - I| <= 1e-4)");
  if (checkpoint == nullptr) {
    lines.emplace_back("model: not compared (no --model)");
  } else if (bundle.model_fingerprint.empty()) {
    lines.push_back("model: geometry fits " + checkpoint->location().name +
                    "; the files do not say which model they were fitted on");
  } else {
    lines.push_back(
        std::string("model: ") + (source.facts.fingerprint_matches ? "fitted on " : "serves ") +
        checkpoint->location().name +
        (source.facts.fingerprint_matches ? ", the fingerprint is equal" : ", which was added to the bundle"));
  }
  return lines;
}

}  // namespace oscar
