// Makes methods from the registry and from bundles: the only code that looks at where a method comes from.
#include <ATen/ATen.h>

#include <algorithm>

#include "base/edit_distance.h"
#include "base/errors.h"
#include "cache/kv_method.h"
#include "transform/fixed_sides.h"

namespace oscar {
namespace {

// [Hkv, 4] F32.
std::vector<std::array<float, kBands>> deviations(const at::Tensor& sigma) {
  std::vector<std::array<float, kBands>> result(static_cast<std::size_t>(sigma.size(0)));
  const auto values = sigma.contiguous();
  std::copy_n(values.const_data_ptr<float>(), values.numel(), result.front().data());
  return result;
}

// KvMethod::places of a bundle.
std::vector<std::int64_t> places_of(const Bundle& bundle, const ModelConfig& model) {
  if (std::ssize(bundle.layers) == model.kv_layers()) return {};
  std::vector<std::int64_t> places(static_cast<std::size_t>(model.kv_layers()), KvMethod::kLeftOut);
  for (std::int64_t i = 0; i < std::ssize(bundle.layers); ++i) {
    const LayerTransform& layer = bundle.layers[static_cast<std::size_t>(i)];
    places[static_cast<std::size_t>(model.kv_place(layer.layer))] = i;
  }
  return places;
}

void use_bundle(KvMethod& method, const ModelConfig& model, const Bundle& bundle) {
  Bundle as_run = bundle;  // with the windows of this run, which decide which layers may be missing
  as_run.windows = method.windows;
  const std::vector<std::string> differences = check_bundle_model(as_run, model, bundle.model_fingerprint);
  if (!differences.empty()) throw InputError("the bundle does not fit the model: " + differences.front());
  method.key_encoder = method.value_encoder = parse_encoder(bundle.encoder);
  method.places = places_of(bundle, model);
  method.layers = bundle.layers;
  for (const LayerTransform& layer : bundle.layers) {
    LayerCode code;
    code.key = layer.key.code(model.head_dim, bundle.quant_group),
    code.value = layer.value.code(model.head_dim, bundle.quant_group);
    if (layer.key.blocks()) code.key_sigma = deviations(layer.key.sigma);
    if (layer.value.blocks()) code.value_sigma = deviations(layer.value.sigma);
    if (layer.key.rotated_mean && !method.rope_phases) {
      require_full_rope(model, "A bundle of keys centered before RoPE");
      RopeFrequencies frequencies = common_rope(model);
      frequencies.inverse = frequencies.inverse.contiguous();
      method.rope_phases = std::make_shared<const RopePhases>(frequencies);
    }
    method.codes.push_back(std::move(code));
  }
}

}  // namespace

void refuse_method(const std::string& id, const Bundle* bundle) {
  std::vector<std::string> known = method_ids();
  if (bundle != nullptr && std::find(known.begin(), known.end(), bundle->method) == known.end()) {
    known.push_back(bundle->method);
  }
  std::string list;
  for (const std::string& name : known) list += (list.empty() ? "" : ", ") + name;
  throw UsageError("method '" + id + "' is not known" + did_you_mean(id, known, ";") +
                   " known methods (oscar-verify methods explains them): " + list);
}

KvMethod make_spec_method(const MethodSpec& description, const ModelConfig& model) {
  return {.id = description.id,
          .source = description.source,
          .rope_dim = model.latent.rope_dim,
          .windows = description.key.windows,
          .value_windows = description.value.windows,
          .coder = spec_coder(description, model)};
}

KvMethod make_method(const std::string& id, const ModelConfig& model, const Bundle* bundle,
                     const CacheWindows& windows) {
  if (windows.sink < 0 || windows.recent < 0 || windows.flush < 1) {
    throw UsageError("windows of " + std::to_string(windows.sink) + " and " + std::to_string(windows.recent) +
                     " tokens are not usable; expected numbers from 0 on");
  }
  const MethodRow* row = find_method(id);
  if (row != nullptr && row->description) return make_spec_method(*row->description, model);
  const bool own = bundle != nullptr && bundle->method == id;  // takes precedence over the registry
  if (!own && (row == nullptr || !row->listed)) refuse_method(id, bundle);
  const bool from_bundle = own || row->needs_bundle();
  if (from_bundle && bundle == nullptr) {
    throw UsageError("method '" + id + "' needs a bundle: pass --bundle DIR or --rotations K.pt,V.pt");
  }
  if (from_bundle && !runs_bundle(id, bundle->method)) {
    throw UsageError("the bundle holds method '" + bundle->method + "', not '" + id + "': ask for '" + bundle->method +
                     "'");
  }

  KvMethod method{.id = id,
                  .source = row != nullptr ? row->source : "bundle",
                  .quantized = own || row->quantized,
                  .rope_dim = model.latent.rope_dim,
                  .windows = windows};
  const int d = static_cast<int>(model.head_dim);
  if (from_bundle) {
    use_bundle(method, model, *bundle);
    return method;
  }
  if (row->transform == MethodTransform::kHadamard) {
    const SideTransform hadamard = hadamard_side(model.head_dim);
    for (std::int64_t i = 0; i < model.kv_layers(); ++i) {
      method.layers.push_back({i, model.head_dim, model.kv_heads, hadamard, hadamard});
    }
  }
  method.codes.assign(static_cast<std::size_t>(model.kv_layers()), {.key = uniform_code(d), .value = uniform_code(d)});
  return method;
}

}  // namespace oscar
