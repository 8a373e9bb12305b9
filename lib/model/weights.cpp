#include "model/weights.h"

#include <array>

#include "base/errors.h"

namespace oscar {
namespace {

using Shape = std::vector<std::int64_t>;

struct LayerEntry {
  at::Tensor LayerWeights::*member;
  const std::string* name;
  Shape shape;
};

std::vector<LayerEntry> layer_entries(const ModelConfig& c, const Family& f) {
  const std::int64_t q_width = c.query_heads * c.head_dim, kv_width = c.kv_heads * c.head_dim;
  using W = LayerWeights;
  return {
      {&W::input_norm, &f.input_norm, {c.hidden}},
      {&W::post_attention_norm, &f.post_attention_norm, {c.hidden}},
      {&W::q, &f.q, {q_width, c.hidden}},
      {&W::k, &f.k, {kv_width, c.hidden}},
      {&W::v, &f.v, {kv_width, c.hidden}},
      {&W::o, &f.o, {c.hidden, q_width}},
      {&W::q_bias, &f.q_bias, {q_width}},
      {&W::k_bias, &f.k_bias, {kv_width}},
      {&W::v_bias, &f.v_bias, {kv_width}},
      {&W::o_bias, &f.o_bias, {c.hidden}},
      {&W::q_norm, &f.q_norm, {c.head_dim}},
      {&W::k_norm, &f.k_norm, {c.head_dim}},
      {&W::gate, &f.gate, {c.intermediate, c.hidden}},
      {&W::up, &f.up, {c.intermediate, c.hidden}},
      {&W::down, &f.down, {c.hidden, c.intermediate}},
      {&W::gate_bias, &f.gate_bias, {c.intermediate}},
      {&W::up_bias, &f.up_bias, {c.intermediate}},
      {&W::down_bias, &f.down_bias, {c.hidden}},
  };
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

const TensorView& checked(const Checkpoint& checkpoint, const std::string& name, const Shape& shape) {
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

// Dropping a bias or norm that the checkpoint holds would give wrong results without a word.
void refuse_ignored(const Checkpoint& checkpoint, const Family& family, std::int64_t layer) {
  Family all;
  all.add_qkv_bias();
  all.add_output_bias();
  all.add_mlp_bias();
  all.q_norm = "self_attn.q_norm.weight";
  all.k_norm = "self_attn.k_norm.weight";
  const std::array<std::pair<const std::string*, const std::string*>, 9> optional = {
      {{&family.q_bias, &all.q_bias},
       {&family.k_bias, &all.k_bias},
       {&family.v_bias, &all.v_bias},
       {&family.o_bias, &all.o_bias},
       {&family.gate_bias, &all.gate_bias},
       {&family.up_bias, &all.up_bias},
       {&family.down_bias, &all.down_bias},
       {&family.q_norm, &all.q_norm},
       {&family.k_norm, &all.k_norm}}};
  for (const auto& [used, name] : optional) {
    const std::string full = family.layer_tensor(layer, *name);
    if (used->empty() && checkpoint.find(full) != nullptr) {
      throw InputError("The checkpoint " + where(checkpoint) + " holds " + full + ", but " +
                       checkpoint.config().architecture +
                       " with this config.json would ignore it; correct config.json (attention_bias, mlp_bias, "
                       "architectures).");
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
  views.embedding =
      &checked(checkpoint, c.tie_embeddings && !has_embedding && has_head ? family.head : family.embedding, table);
  views.head = &checked(checkpoint, c.tie_embeddings && !has_head ? family.embedding : family.head, table);
  views.final_norm = &checked(checkpoint, family.final_norm, {c.hidden});
  return views;
}

LayerWeights load_layer_weights(const Checkpoint& checkpoint, const Family& family, std::int64_t layer,
                                const DecoderOptions& options) {
  LayerWeights weights;
  for (const LayerEntry& entry : layer_entries(checkpoint.config(), family)) {
    if (entry.name->empty()) continue;
    const TensorView& view = checked(checkpoint, family.layer_tensor(layer, *entry.name), entry.shape);
    weights.*entry.member = to_tensor(view, options.dtype, options.device);
  }
  return weights;
}

void check_weights(const Checkpoint& checkpoint, const Family& family) {
  find_outer_weights(checkpoint, family);
  const std::vector<LayerEntry> entries = layer_entries(checkpoint.config(), family);
  for (std::int64_t layer = 0; layer < checkpoint.config().layers; ++layer) {
    for (const LayerEntry& entry : entries) {
      if (!entry.name->empty()) checked(checkpoint, family.layer_tensor(layer, *entry.name), entry.shape);
    }
    refuse_ignored(checkpoint, family, layer);
  }
}

}  // namespace oscar
