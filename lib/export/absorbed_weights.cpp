#include "export/absorbed_weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "checkpoint/families/family.h"

namespace oscar {

std::vector<StoredWeight> absorbing_weights(const Checkpoint& source, std::int64_t layer, bool new_biases) {
  const ModelConfig& c = source.config();
  const Family family = family_of(source);
  const std::int64_t queries = c.query_heads * c.head_dim, keys = c.kv_heads * c.head_dim;
  const auto find = [&](const std::string& name, std::int64_t rows, std::int64_t columns) {
    return find_weight(source, family.layer_tensor(layer, name), {rows, columns});
  };
  std::vector<StoredWeight> weights = {find(family.v, keys, c.hidden), find(family.o, c.hidden, queries)};
  for (const StoredWeight& weight : {find(family.q, queries, c.hidden), find(family.k, keys, c.hidden)}) {
    if (new_biases || !weight.is_plain()) weights.push_back(weight);
  }
  return weights;
}

std::vector<NewTensor> absorb_layer(const Checkpoint& source, const LayerTransform& layer, bool new_biases) {
  const ModelConfig& config = source.config();
  const std::int64_t d = config.head_dim, heads = config.kv_heads, gqa_group = config.gqa_group();
  Family family = family_of(source);
  if (new_biases) family.add_qkv_bias(), family.add_output_bias();
  const auto full = [&](const std::string& name) { return family.layer_tensor(layer.layer, name); };
  const auto read = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    return load_weight(find_weight(source, full(name), shape), at::kDouble);
  };
  // A bias that the source lacks is zero.
  const auto bias = [&](const std::string& name, std::int64_t size) {
    return source.find(full(name)) != nullptr ? read(name, {size}) : at::zeros({size}, at::kDouble);
  };

  const SideTransform& side = layer.value;
  const at::Tensor forward = side.forward.to(at::kDouble).expand({heads, d, d});  // F
  // The exact inverse, not the bundle's FP32-rounded one.
  const at::Tensor inverse = std::get<0>(at::linalg_inv_ex(forward));
  const at::Tensor mean = side.mean.defined() ? side.mean.to(at::kDouble) : at::zeros({heads, d}, at::kDouble);

  const at::Tensor w_v = read(family.v, {heads * d, config.hidden}).view({heads, d, config.hidden});
  const at::Tensor w_o =
      read(family.o, {config.hidden, heads * gqa_group * d}).view({config.hidden, heads, gqa_group, d});
  std::map<std::string, StoredWeight> weights;
  for (StoredWeight& weight : absorbing_weights(source, layer.layer, new_biases)) {
    weights.emplace(weight.name, std::move(weight));
  }
  std::vector<NewTensor> out;
  const auto add = [&](const std::string& name, const std::string& sibling, const at::Tensor& value) {
    out.push_back({full(name), weights.at(full(sibling)).codes->name, value.contiguous()});
  };
  add(family.v, family.v, at::matmul(forward.transpose(1, 2), w_v).reshape({heads * d, config.hidden}));
  // W_O' = W_O F^-T per KV head: [hidden, Hkv, g, d].
  const at::Tensor by_head = w_o.permute({1, 0, 2, 3}).reshape({heads, config.hidden * gqa_group, d});
  const at::Tensor new_o = at::matmul(by_head, inverse.transpose(1, 2)).view({heads, config.hidden, gqa_group, d});
  add(family.o, family.o, new_o.permute({1, 0, 2, 3}).reshape({config.hidden, heads * gqa_group * d}));
  if (!family.v_bias.empty()) {
    const at::Tensor b = bias(family.v_bias, heads * d).view({heads, 1, d});
    add(family.v_bias, family.v, at::matmul(b - mean.unsqueeze(1), forward).reshape({heads * d}));
  }
  if (!family.o_bias.empty()) {
    const at::Tensor moved = (w_o * mean.view({1, heads, 1, d})).sum({1, 2, 3});
    add(family.o_bias, family.o, bias(family.o_bias, config.hidden) + moved);
  }
  if (new_biases) {
    add(family.q_bias, family.q, at::zeros({config.query_heads * d}, at::kDouble));
    add(family.k_bias, family.k, at::zeros({heads * d}, at::kDouble));
  }
  for (const std::string& name : {family.q, family.k}) {
    const auto weight = weights.find(full(name));
    if (weight == weights.end() || weight->second.is_plain()) continue;
    add(name, name, load_weight(weight->second, at::kDouble));
  }
  return out;
}

namespace {

// Appends to the list with that key; creates it if absent and `make` is true.
void append(Json& object, const char* key, const std::vector<std::string>& modules, bool make) {
  if (json_member(object, key).is_null()) {
    if (!make) return;
    object[key] = Json::array();
  }
  Json& list = object[key];
  if (!list.is_array()) return;
  for (const std::string& module : modules) {
    if (std::find(list.begin(), list.end(), Json(module)) == list.end()) list.push_back(module);
  }
}

// GPTQModel skips modules that match a regular expression after "-:".
void append_patterns(Json& quantization, const std::vector<std::string>& modules) {
  Json& dynamic = quantization["dynamic"];
  if (!dynamic.is_object()) dynamic = Json::object();
  for (const std::string& module : modules) {
    std::string pattern = "-:^";
    for (const char c : module) pattern += c == '.' ? std::string("\\.") : std::string(1, c);
    dynamic[pattern + "$"] = Json::object();
  }
}

}  // namespace

void add_plain_modules(Json& config, const std::vector<std::string>& modules) {
  if (modules.empty() || !json_member(config, "quantization_config").is_object()) return;
  Json& quantization = config["quantization_config"];
  const Json& named = json_member(quantization, "quant_method");
  const std::string method = named.is_string() ? named.get<std::string>() : "";
  if (method == "gptq") return append_patterns(quantization, modules);
  const bool ignores = method == "compressed-tensors" || method == "modelopt";
  append(quantization, "ignore", modules, ignores);
  append(quantization, "modules_to_not_convert", modules, !ignores);
  append(quantization, "ignored_layers", modules, false);
  append(quantization, "exclude_modules", modules, false);
}

void add_plain_modules_modelopt(Json& file, const std::vector<std::string>& modules) {
  if (modules.empty() || !json_member(file, "quantization").is_object()) return;
  append(file["quantization"], "exclude_modules", modules, true);
}

}  // namespace oscar
