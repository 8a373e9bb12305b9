#include "bundle/manifest_codebook.h"

#include <ATen/ATen.h>

#include <array>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/json_range.h"

namespace oscar {
namespace {

constexpr std::int64_t kMostChannels = 64;

// The one of `values` whose name the member has.
template <typename T, std::size_t N>
T named(const Json& json, const char* member, const std::array<T, N>& values, const std::string& where) {
  const std::string found = json_string(json, member, where);
  std::string known;
  for (const T value : values) {
    if (found == to_string(value)) return value;
    known += (known.empty() ? "'" : ", '") + std::string(to_string(value)) + "'";
  }
  throw InputError(where + ": '" + member + "' is " + quote_name(found) + ", expected one of " + known);
}

std::int64_t read_centroids(const Json& json, const char* member, const std::string& where) {
  const std::int64_t count = json_int_within(json, member, where, 2, kMostCentroids);
  if ((count & (count - 1)) == 0) return count;
  throw InputError(where + ": '" + member + "' is " + std::to_string(count) + ", expected a power of two");
}

}  // namespace

Json codebook_to_json(const Codebook& codebook) {
  Json json = {{"heads", codebook.first.size(0)},     {"channels", codebook.channels()},
               {"centroids", codebook.first.size(2)}, {"before_rope", codebook.before_rope},
               {"scale", to_string(codebook.scale)},  {"type", to_string(codebook.type)}};
  if (codebook.second.defined()) json["second"] = codebook.second.size(2);
  if (codebook.errors.defined()) json["errors"] = true;
  return json;
}

void read_codebook(const Json& json, const std::string& side, LayerTransform& layer, bool key, Manifest& manifest) {
  const std::string where = side + ", codebook";
  const std::int64_t heads = json_int(json, "heads", where), d = layer.head_dim;
  if (heads != 1 && heads != layer.kv_heads) {
    throw InputError(where + ": 'heads' is " + std::to_string(heads) + ", expected 1 or the layer's " +
                     std::to_string(layer.kv_heads) + " KV heads");
  }
  const std::int64_t channels = json_int_within(json, "channels", where, 1, kMostChannels);
  if (d % channels != 0) {
    throw InputError(where + ": groups of " + std::to_string(channels) + " channels do not divide head_dim " +
                     std::to_string(d));
  }
  auto codebook = std::make_shared<Codebook>();
  codebook->before_rope = json_bool(json, "before_rope", where, false);
  if (codebook->before_rope && (!key || d % 2 != 0)) {
    throw InputError(where + ": 'before_rope' is for keys of an even head_dim");
  }
  codebook->scale = named<RowScale, 3>(json, "scale", {RowScale::kNone, RowScale::kToken, RowScale::kHead}, where);
  codebook->type = named<CentroidType, 2>(json, "type", {CentroidType::kFloat16, CentroidType::kFloat8E5M2}, where);
  const auto stage = [&](const char* member, const char* tensor, at::Tensor& values) {
    const std::vector<std::int64_t> shape = {heads, d / channels, read_centroids(json, member, where), channels};
    manifest.tensors[tensor_name(layer.layer, key, tensor)] = shape;
    values = at::zeros({1}).expand(shape);  // its shape alone, until the tensors are read
  };
  stage("centroids", "codebook", codebook->first);
  if (json.contains("second")) stage("second", "codebook2", codebook->second);
  if (json_bool(json, "errors", where, false)) {
    const std::vector<std::int64_t> shape = {heads, d / channels, codebook->first.size(2)};
    manifest.tensors[tensor_name(layer.layer, key, "codebook_errors")] = shape;
    manifest.tensors[tensor_name(layer.layer, key, "codebook_profile")] = {heads, d / channels, channels};
  }
  (key ? layer.key : layer.value).codebook = std::move(codebook);
}

}  // namespace oscar
