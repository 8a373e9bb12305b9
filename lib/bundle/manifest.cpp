#include "bundle/manifest.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/hash.h"
#include "base/json.h"
#include "checkpoint/model_name.h"
#include "layout/left_out.h"
#include "registry/registry.h"
#include "transform/fixed_sides.h"

namespace oscar {
namespace {

constexpr const char* kFormatName = "oscar-bundle";

Json side_to_json(const SideTransform& side) {
  Json json;
  json["heads"] = side.forward.size(0);
  json["orthogonal"] = side.orthogonal();
  json["centered"] = side.mean.defined();
  if (side.rotated_mean) json["rotated_mean"] = true;
  Json clip = Json::array();
  for (const float rho : side.clip) clip.push_back(json_float(rho));
  json["clip"] = std::move(clip);
  if (side.blocks()) json["widths"] = side.widths;
  if (side.refined) json["refined"] = true;
  return json;
}

float clip_value(const Json& value, const std::string& where) {
  if (!value.is_number() || !(value.get<double>() >= 0.0 && value.get<double>() <= 1.0)) {
    throw InputError(where + ": a clip ratio is " + value.dump() + ", expected a number from 0 to 1");
  }
  return value.get<float>();
}

std::vector<std::uint8_t> read_widths(const Json& widths, const std::string& where) {
  std::vector<std::uint8_t> result;
  for (const Json& width : widths) {
    const bool known = width.is_number_integer() && (width == 0 || width == 1 || width == 2 || width == 4);
    if (!known) throw InputError(where + ": a block width is " + width.dump() + ", expected 0, 1, 2 or 4");
    result.push_back(width.get<std::uint8_t>());
  }
  if (result.size() != kBands) {
    throw InputError(where + ": 'widths' has " + std::to_string(result.size()) + " entries, expected " +
                     std::to_string(kBands));
  }
  return result;
}

bool is_plain_name(const std::string& name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  return !name.empty() && name.size() <= 100 && name.front() != '.' && std::all_of(name.begin(), name.end(), allowed);
}

// Reads one side and lists the tensors that it needs.
void read_side(const Json& json, const std::string& where, LayerTransform& layer, bool key, Manifest& manifest) {
  SideTransform& side = key ? layer.key : layer.value;
  const std::int64_t heads = json_int(json, "heads", where);
  const std::int64_t d = layer.head_dim;
  if (heads != 1 && heads != layer.kv_heads) {
    throw InputError(where + ": 'heads' is " + std::to_string(heads) + ", expected 1 or the layer's " +
                     std::to_string(layer.kv_heads) + " KV heads");
  }
  const bool orthogonal = json_bool(json, "orthogonal", where, true);
  const bool centered = json_bool(json, "centered", where, false);
  side.rotated_mean = json_bool(json, "rotated_mean", where, false);
  if (side.rotated_mean && (!key || !centered || d % 2 != 0)) {
    throw InputError(where + ": 'rotated_mean' is for centered keys of an even head_dim");
  }
  const Json& clips = json_array(json, "clip", where);
  for (const Json& clip : clips) side.clip.push_back(clip_value(clip, where));
  if (side.clip.size() != 1 && side.clip.size() != static_cast<std::size_t>(layer.kv_heads)) {
    throw InputError(where + ": 'clip' has " + std::to_string(side.clip.size()) + " entries, expected 1 or " +
                     std::to_string(layer.kv_heads));
  }
  manifest.tensors[tensor_name(layer.layer, key, "forward")] = {heads, d, d};
  manifest.tensors[tensor_name(layer.layer, key, "eigenvalues")] = {heads, d};
  if (!orthogonal) manifest.tensors[tensor_name(layer.layer, key, "inverse_or_query")] = {heads, d, d};
  if (centered) manifest.tensors[tensor_name(layer.layer, key, "mean")] = {layer.kv_heads, d};
  side.refined = json_bool(json, "refined", where, false);
  if (json.contains("widths")) side.widths = read_widths(json_array(json, "widths", where), where);
  if (side.refined &&
      (!manifest.bundle.latent() || !side.blocks() || side.widths.front() == 0 || side.widths.back() == 0)) {
    throw InputError(where + ": 'refined' is for latent attention whose first and last block have bits");
  }
  if (!side.blocks()) return;
  if (d % 32 != 0 || d > kMaxHeadDim) {
    throw InputError(where + ": has block widths, which need a head_dim that 32 divides, up to " +
                     std::to_string(kMaxHeadDim) + "; found " + std::to_string(d));
  }
  manifest.tensors[tensor_name(layer.layer, key, "sigma")] = {layer.kv_heads, kBands};
}

void read_layers(const Json& json, const std::string& where, Manifest& manifest) {
  const Json& layers = json_array(json, "layers", where);
  if (layers.empty() || layers.size() > kManifestLayers) {
    throw InputError(where + ": 'layers' has " + std::to_string(layers.size()) + " entries, expected 1 to " +
                     std::to_string(kManifestLayers));
  }
  std::int64_t previous = -1;
  for (const Json& entry : layers) {
    LayerTransform layer;
    layer.layer = json_int_within(entry, "layer", where, 0, kManifestLayers - 1);
    const std::string here = where + ", layer " + std::to_string(layer.layer);
    if (layer.layer <= previous) throw InputError(here + ": layers are not in ascending order");
    previous = layer.layer;
    layer.head_dim = json_int_within(entry, "head_dim", here, 1, kManifestHeadDim);
    layer.kv_heads = json_int_within(entry, "kv_heads", here, 1, kManifestHeads);
    read_side(json_object(entry, "key", here), here + ", key", layer, true, manifest);
    if (!manifest.bundle.latent()) {
      read_side(json_object(entry, "value", here), here + ", value", layer, false, manifest);
    } else if (entry.contains("value")) {
      throw InputError(here + ": has a value side, but with latent attention values are the keys");
    } else {
      layer.value = as_value_side(layer.key);
    }
    manifest.bundle.layers.push_back(std::move(layer));
  }
}

void read_files(const Json& json, const std::string& where, Manifest& manifest) {
  for (const auto& [name, entry] : json_object(json, "files", where).items()) {
    if (!is_plain_name(name)) {
      throw InputError(where + ": file name " + quote_name(name) + " is not a plain name inside the bundle");
    }
    BundleFile file{.sha256 = json_string(entry, "sha256", where + ", files." + name),
                    .bytes = static_cast<std::uint64_t>(
                        json_int_within(entry, "bytes", where + ", files." + name, 0, std::int64_t{1} << 50))};
    const auto hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
    if (file.sha256.size() != 64 || !std::all_of(file.sha256.begin(), file.sha256.end(), hex)) {
      throw InputError(where + ": sha256 of " + name + " is " + quote_name(file.sha256) +
                       ", expected 64 hexadecimal digits");
    }
    manifest.files[name] = file;
  }
  if (!manifest.files.contains(kRotationsName)) {
    throw InputError(where + ": 'files' does not list " + std::string(kRotationsName));
  }
}

bool has_blocks(const LayerTransform& layer) { return layer.key.blocks() || layer.value.blocks(); }

// What manifests may hold only from a version on.
struct Since {
  std::int64_t version;
  const char* what;
};

// The last that a bundle has, and so the version that is written and the least that is read.
Since newest_part(const Bundle& bundle) {
  const auto any = [&](auto has) { return std::any_of(bundle.layers.begin(), bundle.layers.end(), has); };
  if (any([](const LayerTransform& layer) { return layer.key.refined; })) return {5, "refined codes"};
  if (bundle.latent()) return {4, "latent attention"};
  if (any([](const LayerTransform& layer) { return layer.key.rotated_mean; })) return {3, "rotated means"};
  return any(has_blocks) ? Since{2, "block widths"} : Since{1, "one width"};
}

// "blocks" if a side has group bit widths, else "uniform".
std::string layout_of(const Bundle& bundle) {
  return std::any_of(bundle.layers.begin(), bundle.layers.end(), has_blocks) ? "blocks" : "uniform";
}

void read_code(const Json& json, const std::string& where, Bundle& bundle) {
  const Json& code = json_object(json, "code", where);
  const std::string layout = json_string(code, "layout", where);
  bundle.encoder = json_string(code, "encoder", where);
  bundle.quant_group = json_int_within(code, "group", where, 0, kManifestHeadDim);
  const std::string expected = layout_of(bundle);
  if (layout != expected) {
    throw InputError(where + ": code layout " + quote_name(layout) +
                     " is not known, or not that of the layers; expected '" + expected + "'");
  }
  if (expected == "uniform") {
    const std::int64_t bits = json_int(code, "bits", where);
    if (bits != 2) {
      throw InputError(where + ": code layout 'uniform' with " + std::to_string(bits) +
                       " bits is not known to this version, expected 2 bits");
    }
  }
  if (bundle.encoder != "minmax" && bundle.encoder != "search") {
    throw InputError(where + ": encoder " + quote_name(bundle.encoder) +
                     " is not known to this version, expected 'minmax' or 'search'");
  }
  for (const LayerTransform& layer : bundle.layers) {
    if (bundle.quant_group > 0 && layer.head_dim % bundle.quant_group != 0) {
      throw InputError(where + ": group " + std::to_string(bundle.quant_group) + " does not divide head_dim " +
                       std::to_string(layer.head_dim) + " of layer " + std::to_string(layer.layer));
    }
  }
}

// If a manifest lists left-out layers, every layer must be present or among them. Published files have no list; then
// the model decides (check_bundle_model).
void check_left_out(const Bundle& bundle, std::int64_t total, const std::string& where) {
  const std::vector<LeftOutLayer> others = read_left_out(bundle.model, total, where);
  if (others.empty()) return;
  std::vector<std::int64_t> all;
  for (const LayerTransform& layer : bundle.layers) all.push_back(layer.layer);
  for (const LeftOutLayer& other : others) all.push_back(other.layer);
  std::sort(all.begin(), all.end());
  for (std::int64_t i = 0; i < total; ++i) {
    const auto place = static_cast<std::size_t>(i);
    if (place < all.size() && all[place] == i) continue;
    const bool twice = i > 0 && place < all.size() && all[place] == i - 1;
    throw InputError(where + ": layer " + std::to_string(twice ? i - 1 : i) +
                     (twice ? " is in 'layers' and in 'left_out', expected it in one of them"
                            : " is neither in 'layers' nor in 'left_out', expected it in one of them"));
  }
}

// Checks what the manifest tells of latent attention, if it does.
void check_latent(const Bundle& bundle, const std::string& where) {
  if (!bundle.latent()) return;
  if (const Json& kind = bundle.model["attention"]; kind != "latent") {
    throw InputError(where + ": 'attention' is " + quote_name(kind.dump()) + ", expected \"latent\", or no such key");
  }
  const std::int64_t rank = json_int_within(bundle.model, "latent_dim", where, 1, kManifestHeadDim);
  json_int_within(bundle.model, "rope_dim", where, 1, kManifestHeadDim);
  for (const LayerTransform& layer : bundle.layers) {
    if (layer.kv_heads == 1 && layer.head_dim == rank && !layer.key.rotated_mean) continue;
    throw InputError(where + ": 'latent_dim' is " + std::to_string(rank) +
                     ", expected layers with one KV head of this size and no rotated mean; found " +
                     std::to_string(layer.kv_heads) + " of " + std::to_string(layer.head_dim) + " in layer " +
                     std::to_string(layer.layer));
  }
}

constexpr const char* kNumbers[] = {"code",   "files",  "format_version", "global_clip", "hadamard_block",
                                    "layers", "method", "scope",          "windows"};  // sorted

}  // namespace

std::string manifest_numbers_sha256(const Json& manifest) {
  nlohmann::json numbers = nlohmann::json::object();
  for (const char* key : kNumbers) numbers[key] = sorted_json(manifest.at(key));
  numbers["fingerprint"] = manifest.at("model").at("fingerprint").get<std::string>();
  return sha256_hex(numbers.dump());
}

std::string tensor_name(std::int64_t layer, bool key, const char* part) {
  return "layers." + std::to_string(layer) + (key ? ".k." : ".v.") + part;
}

Json json_float(float value) {
  char text[40];
  const std::to_chars_result end = std::to_chars(text, text + sizeof text - 1, value);
  *end.ptr = '\0';
  return std::strtod(text, nullptr);
}

Json manifest_to_json(const Bundle& bundle, const std::map<std::string, BundleFile>& files) {
  Json json;
  json["format"] = kFormatName;
  const std::string layout = layout_of(bundle);
  json["format_version"] = newest_part(bundle).version;
  json["method"] = bundle.method;
  json["scope"] = bundle.scope;
  Json model;
  model["fingerprint"] = bundle.model_fingerprint;
  for (const auto& [key, value] : bundle.model.items()) model[key] = value;
  json["model"] = std::move(model);
  json["code"] = {{"layout", layout}};
  if (layout == "uniform") json["code"]["bits"] = 2;
  json["code"]["group"] = bundle.quant_group;
  json["code"]["encoder"] = bundle.encoder;
  json["windows"] = {{"sink", bundle.windows.sink}, {"recent", bundle.windows.recent}};
  json["hadamard_block"] = bundle.hadamard_block;
  json["global_clip"] = {{"key", json_float(bundle.global_key_clip)}, {"value", json_float(bundle.global_value_clip)}};
  Json layers = Json::array();
  for (const LayerTransform& layer : bundle.layers) {
    Json entry;
    entry["layer"] = layer.layer;
    entry["head_dim"] = layer.head_dim;
    entry["kv_heads"] = layer.kv_heads;
    entry["key"] = side_to_json(layer.key);
    if (!bundle.latent()) entry["value"] = side_to_json(layer.value);
    layers.push_back(std::move(entry));
  }
  json["layers"] = std::move(layers);
  Json listed = Json::object();
  for (const auto& [name, file] : files) listed[name] = {{"sha256", file.sha256}, {"bytes", file.bytes}};
  json["files"] = std::move(listed);
  json["numbers_sha256"] = manifest_numbers_sha256(json);
  json["provenance"] = bundle.provenance;
  json["fit"] = bundle.fit_report;
  return json;
}

Manifest manifest_from_json(const Json& json, const std::string& where) {
  const std::string format = json_string(json, "format", where);
  if (format != kFormatName) {
    throw InputError(where + ": 'format' is " + quote_name(format) + ", expected '" + std::string(kFormatName) + "'");
  }
  const std::int64_t version = json_int(json, "format_version", where);
  if (const Json code = json_member(json, "code"); json_member(code, "layout") == "codebook") {
    throw InputError(where +
                     ": holds learned codebooks, which this version does not read; fit a bundle with --method "
                     "oscar or waterfill");
  }
  if (json_member(json, "model").contains("latent")) {
    throw InputError(where +
                     ": is an early bundle for latent attention, which also codes the channels with RoPE; "
                     "fit the model again");
  }
  if (version > kBundleFormatVersion) {
    throw InputError(where + ": format_version " + std::to_string(version) + " is newer than the " +
                     std::to_string(kBundleFormatVersion) + " this program reads; update the toolchain");
  }
  if (version < 1) throw InputError(where + ": format_version " + std::to_string(version) + " does not exist");

  Manifest manifest;
  Bundle& bundle = manifest.bundle;
  bundle.method = json_string(json, "method", where);
  bundle.scope = json_string(json, "scope", where);
  if (find_method(bundle.method) == nullptr && !is_plain_word(bundle.method)) {
    throw InputError(where + ": 'method' is " + quote_name(bundle.method) +
                     ", expected a word of letters, digits, '_' and '-'");
  }
  if (bundle.scope != "layer" && bundle.scope != "head") {
    throw InputError(where + ": 'scope' is " + quote_name(bundle.scope) + ", expected 'layer' or 'head'");
  }
  bundle.model = json_object(json, "model", where);
  bundle.model_fingerprint = json_string(bundle.model, "fingerprint", where + ", model");
  bundle.model.erase("fingerprint");
  if (bundle.model.contains("name")) {
    bundle.model["name"] = read_model_name(json_string(bundle.model, "name", where + ", model", ""), where);
  }
  read_layers(json, where, manifest);
  read_code(json, where, bundle);
  const std::int64_t total = json_int(bundle.model, "layers", where + ", model", kManifestLayers);
  if (bundle.layers.back().layer >= total) {
    throw InputError(where + ": layer " + std::to_string(bundle.layers.back().layer) + " is beyond the model's " +
                     std::to_string(total) + " layers");
  }
  check_left_out(bundle, total, where + ", model");
  check_latent(bundle, where + ", model");
  if (const Since part = newest_part(bundle); version < part.version) {
    throw InputError(where + ": format_version is " + std::to_string(version) + ", expected at least " +
                     std::to_string(part.version) + " for " + part.what + "; fit the model again");
  }
  const Json& windows = json_object(json, "windows", where);
  bundle.windows.sink = json_int_within(windows, "sink", where + ", windows", 0, std::int64_t{1} << 32);
  bundle.windows.recent = json_int_within(windows, "recent", where + ", windows", 0, std::int64_t{1} << 32);
  bundle.hadamard_block = json_int_within(json, "hadamard_block", where, 0, kManifestHeadDim);
  const Json& clip = json_object(json, "global_clip", where);
  json_number(clip, "key", where + ", global_clip");
  json_number(clip, "value", where + ", global_clip");
  bundle.global_key_clip = clip_value(clip.at("key"), where + ", global_clip");
  bundle.global_value_clip = clip_value(clip.at("value"), where + ", global_clip");
  read_files(json, where, manifest);
  manifest.numbers_sha256 = json_string(json, "numbers_sha256", where, "");
  bundle.provenance = json_object(json, "provenance", where);
  bundle.fit_report = json_object(json, "fit", where);
  return manifest;
}

}  // namespace oscar
