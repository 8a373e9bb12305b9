#include "model/weights.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <numeric>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "model/experts.h"
#include "weights/weight_format.h"

namespace oscar {
namespace {

using Shape = std::vector<std::int64_t>;

// A layer as stored in a file: its weights, with some of them combined in one tensor.
struct StoredLayer : LayerWeights {
  at::Tensor qkv, gate_up;
  at::Tensor linear_qkvz, linear_beta_decay;
};

struct LayerEntry {
  at::Tensor StoredLayer::*member;
  const std::string* name;
  Shape shape;
};

std::vector<LayerEntry> attention_entries(const ModelConfig& c, const Family& f, std::int64_t layer) {
  const std::int64_t d = c.head_dim_of(layer), q_width = c.query_heads * d, kv_width = c.kv_heads_of(layer) * d;
  const std::int64_t q_rows = c.output_gate ? 2 * q_width : q_width;  // for each head q, then its gate
  using W = StoredLayer;
  std::vector<LayerEntry> entries = {
      {&W::q, &f.q, {q_rows, c.hidden}},      {&W::qkv, &f.qkv, {q_width + 2 * kv_width, c.hidden}},
      {&W::o, &f.o, {c.hidden, q_width}},     {&W::q_bias, &f.q_bias, {q_rows}},
      {&W::o_bias, &f.o_bias, {c.hidden}},    {&W::q_norm, &f.q_norm, {f.whole_qk_norm ? q_width : d}},
      {&W::sinks, &f.sinks, {c.query_heads}},
  };
  if (c.reads_another(layer)) return entries;
  entries.push_back({&W::k, &f.k, {kv_width, c.hidden}});
  entries.push_back({&W::k_bias, &f.k_bias, {kv_width}});
  entries.push_back({&W::k_norm, &f.k_norm, {f.whole_qk_norm ? kv_width : d}});
  if (c.projects_values(layer)) {
    entries.push_back({&W::v, &f.v, {kv_width, c.hidden}});
    entries.push_back({&W::v_bias, &f.v_bias, {kv_width}});
  }
  return entries;
}

std::vector<LayerEntry> latent_entries(const ModelConfig& c, const Family& f) {
  const LatentAttention& l = c.latent;
  using W = StoredLayer;
  return {
      {&W::q, &f.q, {c.query_heads * l.query_dim(), l.query_rank > 0 ? l.query_rank : c.hidden}},
      {&W::q_a, &f.q_a, {l.query_rank, c.hidden}},
      {&W::q_a_bias, &f.q_a_bias, {l.query_rank}},
      {&W::q_a_norm, &f.q_a_norm, {l.query_rank}},
      {&W::kv_a, &f.kv_a, {c.head_dim + l.rope_dim, c.hidden}},
      {&W::kv_a_bias, &f.kv_a_bias, {c.head_dim + l.rope_dim}},
      {&W::kv_a_norm, &f.kv_a_norm, {c.head_dim}},
      {&W::kv_b, &f.kv_b, {c.query_heads * (l.nope_dim + l.value_dim), c.head_dim}},
      {&W::o, &f.o, {c.hidden, c.query_heads * l.value_dim}},
      {&W::o_bias, &f.o_bias, {c.hidden}},
  };
}

std::vector<LayerEntry> linear_entries(const ModelConfig& c, const Family& f) {
  const LinearAttention& l = c.linear;
  using W = StoredLayer;
  return {
      {&W::linear_qkv, &f.linear_qkv, {l.channels(), c.hidden}},
      {&W::linear_z, &f.linear_z, {l.values(), c.hidden}},
      {&W::linear_beta, &f.linear_beta, {l.value_heads, c.hidden}},
      {&W::linear_decay, &f.linear_decay, {l.value_heads, c.hidden}},
      {&W::linear_qkvz, &f.linear_qkvz, {l.channels() + l.values(), c.hidden}},
      {&W::linear_beta_decay, &f.linear_beta_decay, {2 * l.value_heads, c.hidden}},
      {&W::linear_conv, &f.linear_conv, {l.channels(), 1, l.kernel}},
      {&W::linear_decay_bias, &f.linear_decay_bias, {l.value_heads}},
      {&W::linear_log_rate, &f.linear_log_rate, {l.value_heads}},
      {&W::linear_norm, &f.linear_norm, {l.value_dim}},
      {&W::linear_out, &f.linear_out, {c.hidden, l.values()}},
  };
}

// Excludes experts and tensors that the family does not have.
std::vector<LayerEntry> layer_entries(const ModelConfig& c, const Family& f, std::int64_t layer) {
  using W = StoredLayer;
  std::vector<LayerEntry> entries = {
      {&W::input_norm, &f.input_norm, {c.hidden}},
      {&W::attention_out_norm, &f.attention_out_norm, {c.hidden}},
      {&W::mlp_norm, &f.mlp_norm, {c.hidden}},
      {&W::mlp_out_norm, &f.mlp_out_norm, {c.hidden}},
      {&W::layer_scalar, &f.layer_scalar, {1}},
      {&W::input_gate, &f.input_gate, {c.layer_input, c.hidden}},
      {&W::input_projection, &f.input_projection, {c.hidden, c.layer_input}},
      {&W::input_out_norm, &f.input_out_norm, {c.hidden}},
  };
  const std::vector<LayerEntry> mixer = c.is_linear(layer) ? linear_entries(c, f)
                                        : c.is_latent()    ? latent_entries(c, f)
                                                           : attention_entries(c, f, layer);
  entries.insert(entries.end(), mixer.begin(), mixer.end());
  if (!has_experts(c, layer)) {
    const std::int64_t width = c.intermediate_of(layer);
    const std::vector<LayerEntry> mlp = {
        {&W::gate, &f.gate, {width, c.hidden}},           {&W::up, &f.up, {width, c.hidden}},
        {&W::gate_up, &f.gate_up, {2 * width, c.hidden}}, {&W::down, &f.down, {c.hidden, width}},
        {&W::gate_bias, &f.gate_bias, {width}},           {&W::up_bias, &f.up_bias, {width}},
        {&W::down_bias, &f.down_bias, {c.hidden}},
    };
    entries.insert(entries.end(), mlp.begin(), mlp.end());
  } else if (const std::int64_t shared = c.experts.shared; shared > 0) {
    entries.push_back({&W::gate, &f.shared_gate, {shared, c.hidden}});
    entries.push_back({&W::up, &f.shared_up, {shared, c.hidden}});
    entries.push_back({&W::down, &f.shared_down, {c.hidden, shared}});
    entries.push_back({&W::shared_weight, &f.shared_weight, {1, c.hidden}});
  }
  if (has_experts(c, layer)) {
    const std::vector<LayerEntry> beside = {
        {&W::dense_out_norm, &f.dense_out_norm, {c.hidden}},     {&W::experts_norm, &f.experts_norm, {c.hidden}},
        {&W::experts_out_norm, &f.experts_out_norm, {c.hidden}}, {&W::router_scale, &f.router_scale, {c.hidden}},
        {&W::expert_scale, &f.expert_scale, {c.experts.count}},
    };
    entries.insert(entries.end(), beside.begin(), beside.end());
  }
  std::erase_if(entries, [](const LayerEntry& entry) { return entry.name->empty(); });
  return entries;
}

std::string where(const Checkpoint& checkpoint) { return checkpoint.location().directory.string(); }

// Tensors that can be ignored. Scales and zero points of activations and of low-bit caches, because both stay in the
// run's dtype. Tables of angles, because every implementation recomputes them. Any other name matters.
bool changes_nothing(const std::string& name) {
  constexpr std::array<std::string_view, 9> kOf = {"input", "output", "activation", "q",          "k",
                                                   "v",     "kv",     "prob",       "prob_output"};
  constexpr std::array<std::string_view, 4> kParameters = {"_scale", "_scale_inv", "_zero_point", "_global_scale"};
  constexpr std::array<std::string_view, 6> kTables = {"inv_freq", "cos_cached",    "sin_cached",
                                                       "q.scale",  "k_cache.scale", "v_cache.scale"};
  // Whether the name ends with this word.
  const auto ends = [](std::string_view text, std::string_view word) {
    if (!text.ends_with(word)) return false;
    const char before = text.size() == word.size() ? '.' : text[text.size() - word.size() - 1];
    return before == '.' || before == '_';
  };
  for (const std::string_view parameter : kParameters) {
    if (!name.ends_with(parameter)) continue;
    const std::string_view of = std::string_view(name).substr(0, name.size() - parameter.size());
    if (std::any_of(kOf.begin(), kOf.end(), [&](std::string_view word) { return ends(of, word); })) return true;
  }
  return std::any_of(kTables.begin(), kTables.end(), [&](std::string_view word) { return ends(name, word); });
}

// A zero bias changes nothing. GPTQ checkpoints of older tools have one at every quantized module, and models that were
// converted from another architecture at some plain ones.
bool is_empty_bias(const Checkpoint& checkpoint, const std::string& name) {
  constexpr std::string_view kEnd = ".bias";
  if (!name.ends_with(kEnd)) return false;
  const std::string module = name.substr(0, name.size() - kEnd.size());
  if (checkpoint.find(module + ".qweight") == nullptr && checkpoint.find(module + ".weight") == nullptr) return false;
  const std::span<const std::byte> data = checkpoint.at(name).data;
  return std::all_of(data.begin(), data.end(), [](std::byte byte) { return byte == std::byte{0}; });
}

// Keys and values of a layer that shares another's: published files contain them, but no implementation reads them.
bool is_unread_projection(const Family& family, std::int64_t layer, const std::string& name) {
  constexpr std::array kParts = {"self_attn.k_proj.", "self_attn.v_proj.", "self_attn.k_norm.", "self_attn.v_norm."};
  return std::any_of(kParts.begin(), kParts.end(),
                     [&](const char* part) { return name.starts_with(family.layer_tensor(layer, part)); });
}

// Names beside the weights outside the layers: "lm_head.bias", "lm_head.pre_quant_scale".
bool is_beside_outer_weight(const Family& family, const std::string& name) {
  const std::array weights = {&family.embedding, &family.head, &family.final_norm};
  return std::any_of(weights.begin(), weights.end(), [&](const std::string* weight) {
    const std::size_t module = weight->rfind('.') + 1;  // including the dot
    return !weight->empty() && name != *weight && name.compare(0, module, *weight, 0, module) == 0;
  });
}

// Ignoring a tensor of a weight, or beside one, would silently give wrong results. Layers beyond the model's
// (multi-token prediction) are allowed.
void refuse_ignored(const Checkpoint& checkpoint, const Family& family, const std::set<std::string>& used) {
  const ModelConfig& c = checkpoint.config();
  for (const std::string& name : checkpoint.names()) {
    if (used.contains(name)) continue;
    if (name.starts_with(family.layer_prefix)) {
      std::int64_t layer = -1;
      const char* number = name.data() + family.layer_prefix.size();
      std::from_chars(number, name.data() + name.size(), layer);
      if (layer < 0 || layer >= checkpoint.config().layers) continue;
      if (c.reads_another(layer) && is_unread_projection(family, layer, name)) continue;
    } else if (!is_beside_outer_weight(family, name)) {
      continue;
    }
    if (!changes_nothing(name) && !is_empty_bias(checkpoint, name)) {
      throw InputError("The checkpoint " + where(checkpoint) + " holds " + quote_name(name) + ", but " +
                       checkpoint.config().architecture +
                       " with this config.json would ignore it, so that results would differ; correct config.json "
                       "(architectures, attention_bias, mlp_bias, number of experts), or use the BF16 checkpoint of "
                       "the model where the tensor belongs to a quantization.");
    }
  }
}

// Rows of embeddings are read one by one, so embeddings must not be quantized.
void require_plain(const Checkpoint& checkpoint, const StoredWeight& embedding) {
  if (embedding.format == nullptr) return;
  throw InputError("The embedding " + embedding.name + " of " + where(checkpoint) + " is stored as " +
                   embedding.format_name() + ", but embeddings must be BF16, F16, F32 or F64; use a checkpoint " +
                   "whose embedding is not quantized.");
}

}  // namespace

// With tied embeddings, either tensor may be saved. If both exist, each is used separately, as in transformers, which
// ties them only if they are equal.
OuterViews find_outer_weights(const Checkpoint& checkpoint, const Family& family) {
  const ModelConfig& c = checkpoint.config();
  const Shape table = {c.vocabulary, c.hidden};
  const bool has_embedding = stores_weight(checkpoint, family.embedding);
  const bool has_head = stores_weight(checkpoint, family.head);
  const StoredWeight embedding =
      find_weight(checkpoint, c.one_table && !has_embedding && has_head ? family.head : family.embedding, table);
  require_plain(checkpoint, embedding);
  OuterViews outer{.embedding = embedding.codes,
                   .head = find_weight(checkpoint, c.one_table && !has_head ? family.embedding : family.head, table),
                   .final_norm = find_weight(checkpoint, family.final_norm, {c.hidden})};
  if (c.layer_input > 0) {
    const std::int64_t width = c.layers * c.layer_input;
    const StoredWeight of_layers = find_weight(checkpoint, family.layer_embedding, {c.vocabulary, width});
    require_plain(checkpoint, of_layers);
    outer.layer_embedding = of_layers.codes;
    outer.layer_projection = find_weight(checkpoint, family.layer_projection, {width, c.hidden});
    outer.layer_projection_norm = find_weight(checkpoint, family.layer_projection_norm, {c.layer_input});
  }
  return outer;
}

namespace {

// Rows of q and its gate, which alternate by head: [2 Hq d, ...] -> two of [Hq d, ...].
void split_output_gate(const ModelConfig& c, at::Tensor& q, at::Tensor& gate) {
  if (!q.defined()) return;
  std::vector<std::int64_t> by_head = q.sizes().vec(), whole = by_head;
  whole[0] = c.query_heads * c.head_dim;
  by_head[0] = c.head_dim;
  by_head.insert(by_head.begin(), {c.query_heads, 2});
  const at::Tensor halves = q.view(by_head);
  gate = halves.select(1, 1).reshape(whole);
  q = halves.select(1, 0).reshape(whole);
}

// Rows grouped by key head, [q, k, v, z] and [beta, decay] -> grouped by tensor over all heads.
void split_by_key_heads(const LinearAttention& l, StoredLayer& stored) {
  const std::int64_t shared = l.value_heads / l.key_heads, value = shared * l.value_dim;
  const auto rows = [&](const at::Tensor& whole, std::int64_t first, std::int64_t count) {
    return whole.view({l.key_heads, -1, whole.size(1)}).narrow(1, first, count).reshape({-1, whole.size(1)});
  };
  const at::Tensor& all = stored.linear_qkvz;
  stored.linear_qkv =
      at::cat({rows(all, 0, l.key_dim), rows(all, l.key_dim, l.key_dim), rows(all, 2 * l.key_dim, value)});
  stored.linear_z = rows(all, 2 * l.key_dim + value, value);
  stored.linear_beta = rows(stored.linear_beta_decay, 0, shared);
  stored.linear_decay = rows(stored.linear_beta_decay, shared, shared);
}

// Exponents of decays keep their stored dtype in every run.
bool kept_wide(const LayerEntry& entry) {
  return entry.member == static_cast<at::Tensor StoredLayer::*>(&LayerWeights::linear_decay_bias) ||
         entry.member == static_cast<at::Tensor StoredLayer::*>(&LayerWeights::linear_log_rate);
}

// The weights of DecoderOptions::products: after the parts of stored tensors are found, so that each has its own type.
void set_product_dtype(const DecoderOptions& options, LayerWeights& weights) {
  if (!options.narrow_products()) return;
  for (at::Tensor LayerWeights::*const member :
       {&LayerWeights::q, &LayerWeights::k, &LayerWeights::v, &LayerWeights::o, &LayerWeights::q_a, &LayerWeights::kv_a,
        &LayerWeights::gate, &LayerWeights::up, &LayerWeights::down}) {
    at::Tensor& weight = weights.*member;
    if (weight.defined()) weight = weight.to(options.product_dtype());
  }
}

}  // namespace

LayerWeights load_layer_weights(const Checkpoint& checkpoint, const Family& family, std::int64_t layer,
                                const DecoderOptions& options) {
  const ModelConfig& c = checkpoint.config();
  StoredLayer stored;
  for (const LayerEntry& entry : layer_entries(c, family, layer)) {
    const StoredWeight weight = find_weight(checkpoint, family.layer_tensor(layer, *entry.name), entry.shape);
    stored.*entry.member = load_weight(weight, kept_wide(entry) ? at::kFloat : options.dtype, options.device);
  }
  if (has_experts(c, layer)) load_expert_weights(checkpoint, family, layer, options, stored);
  if (stored.qkv.defined()) {
    const std::int64_t q_width = c.query_heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
    stored.q = stored.qkv.narrow(0, 0, q_width);
    stored.k = stored.qkv.narrow(0, q_width, kv_width);
    stored.v = stored.qkv.narrow(0, q_width + kv_width, kv_width);
  }
  if (c.output_gate) {
    split_output_gate(c, stored.q, stored.output_gate);
    split_output_gate(c, stored.q_bias, stored.output_gate_bias);
  }
  if (stored.linear_qkvz.defined()) split_by_key_heads(c.linear, stored);
  if (stored.gate_up.defined()) {
    const std::int64_t width = c.intermediate_of(layer);
    stored.gate = stored.gate_up.narrow(0, 0, width);
    stored.up = stored.gate_up.narrow(0, width, width);
  }
  set_product_dtype(options, stored);
  return std::move(static_cast<LayerWeights&>(stored));
}

namespace {

// Every weight of a layer: its name and shape.
void visit_layer(const Checkpoint& checkpoint, const Family& family, std::int64_t layer,
                 const std::function<void(const std::string&, const Shape&)>& visit) {
  for (const LayerEntry& entry : layer_entries(checkpoint.config(), family, layer)) {
    visit(family.layer_tensor(layer, *entry.name), entry.shape);
  }
  if (has_experts(checkpoint.config(), layer)) visit_expert_tensors(checkpoint, family, layer, visit);
}

}  // namespace

void check_weights(const Checkpoint& checkpoint, const Family& family) {
  const OuterViews outer = find_outer_weights(checkpoint, family);
  std::set<std::string> used;
  for (const StoredWeight* weight : {&outer.head, &outer.final_norm}) {
    for (const TensorView* part : weight->parts()) used.insert(part->name);
  }
  const auto check = [&](const std::string& name, const Shape& shape) {
    for (const TensorView* part : find_weight(checkpoint, name, shape).parts()) used.insert(part->name);
  };
  for (std::int64_t layer = 0; layer < checkpoint.config().layers; ++layer) {
    visit_layer(checkpoint, family, layer, check);
  }
  refuse_ignored(checkpoint, family, used);
}

void check_weight_names(const Checkpoint& checkpoint) {
  const Family family = family_of(checkpoint);
  const auto check = [&](const std::string& name, const Shape& shape) {
    if (stores_weight(checkpoint, name)) return;
    throw InputError("The tensor " + name + " is missing from model.safetensors.index.json of " + where(checkpoint) +
                     "; " + checkpoint.config().architecture + " needs it with shape " + weight_shape_text(shape) +
                     ".");
  };
  for (std::int64_t layer = 0; layer < checkpoint.config().layers; ++layer) {
    visit_layer(checkpoint, family, layer, check);
  }
}

std::vector<std::uint64_t> layer_elements(const Checkpoint& checkpoint) {
  const Family family = family_of(checkpoint);
  std::vector<std::uint64_t> elements(static_cast<std::size_t>(checkpoint.config().layers), 0);
  for (std::size_t layer = 0; layer < elements.size(); ++layer) {
    visit_layer(checkpoint, family, static_cast<std::int64_t>(layer), [&](const std::string&, const Shape& shape) {
      std::uint64_t size = 1;
      for (const std::int64_t extent : shape) size *= static_cast<std::uint64_t>(extent);
      elements[layer] += size;
    });
  }
  return elements;
}

namespace {

// With only an index, names of scales and codes decide; a name without such information counts as a plain weight.
bool is_quantized(const Checkpoint& checkpoint, const std::string& name, const Shape& shape) {
  if (checkpoint.has_shards()) return !find_weight(checkpoint, name, shape).is_plain();
  return has_quantized_parts(checkpoint, name);
}

std::uint64_t elements_of(const Shape& shape, std::size_t from = 0) {
  std::uint64_t size = 1;
  for (std::size_t i = from; i < shape.size(); ++i) size *= static_cast<std::uint64_t>(shape[i]);
  return size;
}

// A kernel's input: the stored tensors of a weight. With only an index, an upper limit for all formats: 8-bit codes
// with a 16-bit scale per group of two.
std::uint64_t stored_bytes(const Checkpoint& checkpoint, const std::string& name, const Shape& shape) {
  if (!checkpoint.has_shards()) return 2 * elements_of(shape);
  const StoredWeight weight = find_weight(checkpoint, name, shape);
  std::uint64_t bytes = weight.input_factors != nullptr ? 4 * elements_of(shape) : 0;  // the product, in FP32
  for (const TensorView* part : weight.parts()) bytes += part->data.size();
  return bytes;
}

// ATen's memory on the CPU: codes as bytes, as indices or 32-bit integers, and the FP32 product; this is the peak per
// element. With three dimensions the first counts experts, which are processed one at a time.
std::uint64_t unpacked_bytes(const Shape& shape) {
  constexpr std::uint64_t kEach = 12;
  return kEach * elements_of(shape, shape.size() > 2 ? 1 : 0);
}

}  // namespace

std::uint64_t dequantization_bytes(const Checkpoint& checkpoint, at::Device device) {
  const Family family = family_of(checkpoint);
  std::uint64_t largest = 0;
  for (std::int64_t layer = 0; layer < checkpoint.config().layers; ++layer) {
    visit_layer(checkpoint, family, layer, [&](const std::string& name, const Shape& shape) {
      if (!is_quantized(checkpoint, name, shape)) return;
      const std::uint64_t bytes = device.is_cuda() ? stored_bytes(checkpoint, name, shape) : unpacked_bytes(shape);
      largest = std::max(largest, bytes);
    });
  }
  return largest;
}

std::uint64_t decoded_bytes(const Checkpoint& checkpoint, std::uint64_t width) {
  const ModelConfig& c = checkpoint.config();
  const std::vector<std::uint64_t> layers = layer_elements(checkpoint);
  const auto hidden = static_cast<std::uint64_t>(c.hidden);
  const std::uint64_t table = static_cast<std::uint64_t>(c.vocabulary) * hidden;
  const bool two = !c.one_table || stores_weight(checkpoint, family_of(checkpoint).head);
  const std::uint64_t inputs = static_cast<std::uint64_t>(c.layers * c.layer_input) * hidden;
  return width * std::accumulate(layers.begin(), layers.end(), (two ? 2 : 1) * table + hidden + inputs);
}

}  // namespace oscar
