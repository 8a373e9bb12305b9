#include "model/decoder.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/log.h"
#include "model/carried_rows.h"
#include "model/latent_attention.h"
#include "model/layer.h"
#include "model/layer_loading.h"
#include "model/rope.h"
#include "model/weights.h"
#include "weights/tensor_view.h"

namespace oscar {

struct Decoder::Impl {
  const Checkpoint& checkpoint;
  DecoderOptions options;
  Family family;
  OuterViews outer;
  at::Tensor final_norm;                               // [hidden]
  at::Tensor layer_projection, layer_projection_norm;  // [L P, hidden], [P]; undefined without layer embeddings
  at::Tensor head;                                     // [vocabulary, hidden]; loaded by the first logits()
  std::array<RopeFrequencies, 2> frequencies;          // of the global and the local layers

  std::vector<LayerWeights> layers;  // all layers, or one slot under stream_layers
  std::unique_ptr<LayerPrefetch> prefetch;
  std::unique_ptr<ResidentLoad> load;  // loads all layers to a GPU; flags of the arrived layers:
  std::vector<bool> taken;
  std::int64_t resident = -1;  // the layer in that slot

  // Tables of the last batch, because every layer of a step uses the same positions.
  std::array<RopeTable, 3> tables;  // for global layers, local layers, and layers without RoPE
  std::array<bool, 3> made{};
  std::vector<std::int64_t> table_starts, table_lengths;

  Impl(const Checkpoint& source, const DecoderOptions& chosen)
      : checkpoint(source), options(chosen), family(family_of(source)) {
    const ModelConfig& config = checkpoint.config();
    if (config.text_tower) {
      log_info("only the text model of " + quote_name(source.location().name) +
               " is used: its prompts hold no images, and what handles them is not read");
    }
    frequencies[0] = rope_frequencies(config.rope, config.rotary_width(), config.max_position);
    const auto& kinds = config.layer_rope;
    if (std::find(kinds.begin(), kinds.end(), LayerRope::kLocal) != kinds.end()) {
      frequencies[1] = rope_frequencies(config.local_rope, config.local_head_dim(), config.max_position);
    }
    check_weights(checkpoint, family);
    outer = find_outer_weights(checkpoint, family);
    final_norm = load_weight(outer.final_norm, options.dtype, options.device);
    if (config.layer_input > 0) {
      layer_projection = load_weight(outer.layer_projection, options.dtype, options.device);
      layer_projection_norm = load_weight(outer.layer_projection_norm, options.dtype, options.device);
    }
    if (options.stream_layers) {
      layers.resize(1);
      if (options.prefetch && options.device.is_cuda()) {
        prefetch = std::make_unique<LayerPrefetch>(checkpoint, family, options);
      }
      return;
    }
    if (options.device.is_cuda()) {
      layers.resize(static_cast<std::size_t>(config.layers));
      taken.resize(layers.size());
      load = std::make_unique<ResidentLoad>(checkpoint, family, options);
      return;
    }
    for (std::int64_t layer = 0; layer < config.layers; ++layer) {
      layers.push_back(load_layer_weights(checkpoint, family, layer, options));
    }
  }

  const LayerWeights& weights(std::int64_t layer) {
    if (layer < 0 || layer >= checkpoint.config().layers) {
      throw std::out_of_range("layer " + std::to_string(layer) + " of " + std::to_string(checkpoint.config().layers));
    }
    if (!options.stream_layers) return resident_weights(static_cast<std::size_t>(layer));
    if (resident != layer) {
      layers[0] = LayerWeights{};  // free the old layer before loading, so that two are never resident
      resident = -1;
      layers[0] = prefetch ? prefetch->take(layer) : load_layer_weights(checkpoint, family, layer, options);
      resident = layer;
    }
    return layers[0];
  }

  const LayerWeights& resident_weights(std::size_t layer) {
    if (load && !taken[layer]) {
      layers[layer] = load->take(static_cast<std::int64_t>(layer));
      taken[layer] = true;
    }
    return layers[layer];
  }

  const RopeTable& rope(std::int64_t layer, const SequenceBatch& batch) {
    const std::vector<LayerRope>& kinds = checkpoint.config().layer_rope;
    const LayerRope kind = kinds.empty() ? LayerRope::kGlobal : kinds.at(static_cast<std::size_t>(layer));
    if (table_starts != batch.starts || table_lengths != batch.lengths) {
      tables = {};
      made = {};
      table_starts = batch.starts;
      table_lengths = batch.lengths;
    }
    const std::size_t which = kind == LayerRope::kNone ? 2 : kind == LayerRope::kLocal ? 1 : 0;
    RopeTable& table = tables[which];
    if (std::exchange(made[which], true)) return table;
    if (kind != LayerRope::kNone) table = rope_table(frequencies[which], batch, options.dtype, options.device);
    const QueryScale& scale = checkpoint.config().query_scale;
    if (scale.length > 0.0 && (kind == LayerRope::kNone || !scale.without_rope)) {
      table.query_scale = query_scales(scale, batch, options.device);
    }
    return table;
  }
};

const char* dtype_name(at::ScalarType dtype) { return dtype == at::kBFloat16 ? "bfloat16" : "float32"; }

const char* DecoderOptions::dtype_name() const { return narrow_products() ? "mixed" : oscar::dtype_name(dtype); }

Decoder::Decoder(const Checkpoint& checkpoint, const DecoderOptions& options)
    : impl_(std::make_unique<Impl>(checkpoint, options)) {}
Decoder::~Decoder() = default;

const ModelConfig& Decoder::config() const { return impl_->checkpoint.config(); }
const DecoderOptions& Decoder::options() const { return impl_->options; }
const LayerWeights& Decoder::layer_weights(std::int64_t layer) { return impl_->weights(layer); }

at::Tensor Decoder::attention_out_weight(std::int64_t layer) {
  const LayerWeights& weights = layer_weights(layer);
  const at::Tensor out = output_weight(config(), weights);
  if (!weights.attention_out_norm.defined()) return out;
  return out.to(at::kFloat) * norm_gain(weights.attention_out_norm, impl_->family.pieces.norm).unsqueeze(1);
}

at::Tensor Decoder::embed(const std::vector<std::int32_t>& ids) const {
  const std::int64_t vocabulary = config().vocabulary;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocabulary) {
      throw InputError("Token id " + std::to_string(ids[i]) + " at position " + std::to_string(i) +
                       " is outside the model's vocabulary of " + std::to_string(vocabulary) +
                       "; the tokenizer and the model do not belong together.");
    }
  }
  at::Tensor rows = gather_rows(*impl_->outer.embedding, ids, impl_->options.dtype, impl_->options.device);
  if (config().embedding_scale != 1.0) rows.mul_(at::scalar_tensor(config().embedding_scale, rows.options()));
  if (config().state_width() == config().hidden) return rows;
  if (config().layer_input == 0) return first_rows(config(), rows, {});
  at::Tensor own = gather_rows(*impl_->outer.layer_embedding, ids, impl_->options.dtype, impl_->options.device);
  own.mul_(at::scalar_tensor(std::sqrt(static_cast<double>(config().layer_input)), own.options()));
  return first_rows(config(), rows,
                    layer_inputs(config(), rows, own, impl_->layer_projection, impl_->layer_projection_norm));
}

at::Tensor Decoder::run_layer(std::int64_t layer, const at::Tensor& hidden, const SequenceBatch& batch,
                              Attention& attention, const at::Tensor& asked) {
  if (batch.starts.size() != batch.lengths.size() || batch.ids.size() != batch.lengths.size() ||
      batch.tokens() != hidden.size(0)) {
    throw std::invalid_argument("run_layer: the sequence batch does not describe the rows of `hidden`");
  }
  const LayerWeights& weights = impl_->weights(layer);
  const RopeTable& table = impl_->rope(layer, batch);
  if (config().state_width() == config().hidden) {
    return decoder_layer(config(), layer, weights, hidden, batch, table, attention, impl_->family.pieces, asked);
  }
  CarriedRows carried = carried_rows(config(), layer, hidden);
  const at::Tensor out = decoder_layer(config(), layer, weights, hidden_of(config(), hidden), batch, table, attention,
                                       impl_->family.pieces, asked, &carried);
  if (asked.defined()) return out;  // only the final norm follows
  return next_rows(config(), layer, hidden, out, carried);
}

at::Tensor Decoder::final_norm(const at::Tensor& hidden) const {
  return rms_norm(hidden_of(config(), hidden), impl_->final_norm, config().rms_eps, impl_->family.pieces.norm);
}

void Decoder::load_head() const {
  if (impl_->head.defined()) return;
  impl_->head = load_weight(impl_->outer.head, impl_->options.product_dtype(), impl_->options.device);
}

static at::Tensor scaled_and_capped(const ModelConfig& config, at::Tensor logits) {
  if (config.logit_scale > 0.0) logits.mul_(config.logit_scale);
  if (const double cap = config.final_soft_cap; cap > 0.0) logits.div_(cap).tanh_().mul_(cap);
  return logits;
}

at::Tensor Decoder::logits(const at::Tensor& normed) const {
  load_head();
  return scaled_and_capped(config(), product(normed, impl_->head, {}, at::kFloat));
}

at::Tensor Decoder::logits_at(const at::Tensor& normed, const at::Tensor& tokens) const {
  load_head();
  const at::Tensor rows = impl_->head.index_select(0, tokens.flatten()).view({tokens.size(0), tokens.size(1), -1});
  return scaled_and_capped(config(), at::bmm(normed.to(rows.scalar_type()), rows.transpose(1, 2)).to(at::kFloat));
}

at::Tensor Decoder::forward(const std::vector<std::int32_t>& ids, const SequenceBatch& batch, Attention& attention) {
  at::Tensor hidden = embed(ids);
  for (std::int64_t layer = 0; layer < config().layers; ++layer) hidden = run_layer(layer, hidden, batch, attention);
  return final_norm(hidden);
}

}  // namespace oscar
