#include "model/weights.h"

#include <charconv>
#include <set>
#include <utility>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "model/expert_weights.h"

namespace oscar {
namespace {

using Shape = std::vector<std::int64_t>;

// What a file holds of a layer: its weights, some of them in one tensor.
struct StoredLayer : LayerWeights {
  at::Tensor qkv, gate_up;
};

struct LayerEntry {
  at::Tensor StoredLayer::*member;
  const std::string* name;
  Shape shape;
};

// Without experts, and without what the family does not have.
std::vector<LayerEntry> layer_entries(const ModelConfig& c, const Family& f, std::int64_t layer) {
  const std::int64_t q_width = c.query_heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
  using W = StoredLayer;
  std::vector<LayerEntry> entries = {
      {&W::input_norm, &f.input_norm, {c.hidden}},
      {&W::attention_out_norm, &f.attention_out_norm, {c.hidden}},
      {&W::mlp_norm, &f.mlp_norm, {c.hidden}},
      {&W::mlp_out_norm, &f.mlp_out_norm, {c.hidden}},
      {&W::q, &f.q, {q_width, c.hidden}},
      {&W::k, &f.k, {kv_width, c.hidden}},
      {&W::v, &f.v, {kv_width, c.hidden}},
      {&W::qkv, &f.qkv, {q_width + 2 * kv_width, c.hidden}},
      {&W::o, &f.o, {c.hidden, q_width}},
      {&W::q_bias, &f.q_bias, {q_width}},
      {&W::k_bias, &f.k_bias, {kv_width}},
      {&W::v_bias, &f.v_bias, {kv_width}},
      {&W::o_bias, &f.o_bias, {c.hidden}},
      {&W::q_norm, &f.q_norm, {f.whole_qk_norm ? q_width : c.head_dim}},
      {&W::k_norm, &f.k_norm, {f.whole_qk_norm ? kv_width : c.head_dim}},
      {&W::sinks, &f.sinks, {c.query_heads}},
  };
  if (!has_experts(c, layer)) {
    const std::vector<LayerEntry> mlp = {
        {&W::gate, &f.gate, {c.intermediate, c.hidden}},
        {&W::up, &f.up, {c.intermediate, c.hidden}},
        {&W::gate_up, &f.gate_up, {2 * c.intermediate, c.hidden}},
        {&W::down, &f.down, {c.hidden, c.intermediate}},
        {&W::gate_bias, &f.gate_bias, {c.intermediate}},
        {&W::up_bias, &f.up_bias, {c.intermediate}},
        {&W::down_bias, &f.down_bias, {c.hidden}},
    };
    entries.insert(entries.end(), mlp.begin(), mlp.end());
  }
  std::erase_if(entries, [](const LayerEntry& entry) { return entry.name->empty(); });
  return entries;
}

std::string shape_text(const Shape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

std::string where(const Checkpoint& checkpoint) { return checkpoint.location().directory.string(); }

// A packed or scaled form of a weight, as quantised checkpoints hold: its presence explains a missing tensor.
bool looks_quantised(const Checkpoint& checkpoint, const std::string& name) {
  const std::string stem = name.substr(0, name.rfind('.'));
  for (const char* suffix : {".qweight", ".weight_scale", ".weight_scale_inv", ".weight_packed", ".absmax"}) {
    if (checkpoint.find(stem + suffix) != nullptr) return true;
  }
  return checkpoint.find(name + ".absmax") != nullptr;
}

}  // namespace

const TensorView& checked_weight(const Checkpoint& checkpoint, const std::string& name, const Shape& shape) {
  const TensorView* view = checkpoint.find(name);
  if (looks_quantised(checkpoint, name)) {
    throw InputError("The weight " + name + " of " + where(checkpoint) +
                     " is stored quantised, which is not supported; use the original BF16, F16 or F32 checkpoint.");
  }
  if (view == nullptr) {
    throw InputError("The tensor " + name + " is missing from " + where(checkpoint) + "; " +
                     checkpoint.config().architecture + " needs it with shape " + shape_text(shape) + ".");
  }
  if (view->shape != shape) {
    throw InputError("The tensor " + name + " of " + where(checkpoint) + " has shape " + view->shape_text() +
                     ", but config.json implies " + shape_text(shape) + ".");
  }
  switch (view->dtype) {
    case DType::kBF16:
    case DType::kF16:
    case DType::kF32:
    case DType::kF64:
      return *view;
    default:
      throw InputError("The tensor " + name + " of " + where(checkpoint) + " has dtype " + dtype_name(view->dtype) +
                       ", but weights must be BF16, F16, F32 or F64.");
  }
}

namespace {

// Dropping a weight, bias or norm that the checkpoint holds would give wrong results without a word. Layers beyond the
// model's (multi-token prediction) are left alone.
void refuse_ignored(const Checkpoint& checkpoint, const Family& family, const std::set<std::string>& used) {
  for (const std::string& name : checkpoint.names()) {
    if (!name.starts_with(family.layer_prefix) || used.contains(name)) continue;
    std::int64_t layer = -1;
    const char* number = name.data() + family.layer_prefix.size();
    std::from_chars(number, name.data() + name.size(), layer);
    if (layer < 0 || layer >= checkpoint.config().layers) continue;
    if (name.ends_with("weight") || name.ends_with("bias") || name.ends_with("sinks")) {
      throw InputError("The checkpoint " + where(checkpoint) + " holds " + quote_name(name) + ", but " +
                       checkpoint.config().architecture +
                       " with this config.json would ignore it; correct config.json (architectures, attention_bias, "
                       "mlp_bias, number of experts).");
    }
  }
}

}  // namespace

// With tied embeddings either tensor may be the one that was saved; where both are there, each is used for itself, as
// transformers does (it ties them only when they are equal).
OuterViews find_outer_weights(const Checkpoint& checkpoint, const Family& family) {
  const ModelConfig& c = checkpoint.config();
  const Shape table = {c.vocabulary, c.hidden};
  const bool has_embedding = checkpoint.find(family.embedding) != nullptr;
  const bool has_head = checkpoint.find(family.head) != nullptr;
  OuterViews views;
  views.embedding = &checked_weight(
      checkpoint, c.tie_embeddings && !has_embedding && has_head ? family.head : family.embedding, table);
  views.head = &checked_weight(checkpoint, c.tie_embeddings && !has_head ? family.embedding : family.head, table);
  views.final_norm = &checked_weight(checkpoint, family.final_norm, {c.hidden});
  return views;
}

LayerWeights load_layer_weights(const Checkpoint& checkpoint, const Family& family, std::int64_t layer,
                                const DecoderOptions& options) {
  const ModelConfig& c = checkpoint.config();
  StoredLayer stored;
  for (const LayerEntry& entry : layer_entries(c, family, layer)) {
    const TensorView& view = checked_weight(checkpoint, family.layer_tensor(layer, *entry.name), entry.shape);
    stored.*entry.member = to_tensor(view, options.dtype, options.device);
  }
  if (has_experts(c, layer)) load_expert_weights(checkpoint, family, layer, options, stored);
  if (stored.qkv.defined()) {
    const std::int64_t q_width = c.query_heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
    stored.q = stored.qkv.narrow(0, 0, q_width);
    stored.k = stored.qkv.narrow(0, q_width, kv_width);
    stored.v = stored.qkv.narrow(0, q_width + kv_width, kv_width);
  }
  if (stored.gate_up.defined()) {
    stored.gate = stored.gate_up.narrow(0, 0, c.intermediate);
    stored.up = stored.gate_up.narrow(0, c.intermediate, c.intermediate);
  }
  return std::move(static_cast<LayerWeights&>(stored));
}

void check_weights(const Checkpoint& checkpoint, const Family& family) {
  find_outer_weights(checkpoint, family);
  std::set<std::string> used;
  const auto check = [&](const std::string& name, const Shape& shape) {
    checked_weight(checkpoint, name, shape);
    used.insert(name);
  };
  for (std::int64_t layer = 0; layer < checkpoint.config().layers; ++layer) {
    for (const LayerEntry& entry : layer_entries(checkpoint.config(), family, layer)) {
      check(family.layer_tensor(layer, *entry.name), entry.shape);
    }
    if (has_experts(checkpoint.config(), layer)) visit_expert_tensors(checkpoint, family, layer, check);
  }
  refuse_ignored(checkpoint, family, used);
}

}  // namespace oscar
