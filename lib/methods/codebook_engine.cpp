#include "methods/codebook_engine.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "base/errors.h"
#include "codec/two_levels.h"
#include "model/rope.h"
#include "model/rope_phases.h"
#include "rotation/codebook_basis.h"
#include "statistics/unrotation.h"

namespace oscar {
namespace {

const SideTransform& side_of(const LayerTransform& layer, Side side) {
  return side == Side::kKey ? layer.key : layer.value;
}

}  // namespace

CodebookEngine::CodebookEngine(std::vector<LayerTransform> layers, std::int64_t group, Encoder encoder,
                               const ModelConfig& model)
    : layers_(std::move(layers)), group_(group), encoder_(encoder) {
  index_.assign(static_cast<std::size_t>(model.kv_layers()), layers_.size());
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    index_.at(static_cast<std::size_t>(model.kv_place(layers_[i].layer))) = i;
  }
  const bool before_rope = std::any_of(layers_.begin(), layers_.end(), [](const LayerTransform& layer) {
    return layer.key.codebook && layer.key.codebook->before_rope;
  });
  if (!before_rope) return;
  require_full_rope(model, "A bundle with codebooks of keys before RoPE");
  const RopeFrequencies frequencies = common_rope(model);
  inverse_frequency_ = frequencies.inverse.to(at::kFloat).contiguous();
  attention_factor_ = frequencies.attention_factor;
}

const LayerTransform& CodebookEngine::layer_at(std::int64_t layer) const {
  return layers_.at(index_.at(static_cast<std::size_t>(layer)));
}

double CodebookEngine::bits_per_element() const {
  double bits = 0.0, elements = 0.0;
  for (const LayerTransform& layer : layers_) {
    for (const SideTransform* side : {&layer.key, &layer.value}) {
      const double count = static_cast<double>(layer.head_dim * layer.kv_heads);
      bits += count * oscar::bits_per_element(*side, layer.kv_heads, layer.head_dim, group_);
      elements += count;
    }
  }
  return bits / elements;
}

// By the positions 0, 1, ... of the rows; back: to what they were before RoPE.
at::Tensor CodebookEngine::apply_rope(const at::Tensor& rows, bool back) const {
  std::vector<std::int64_t> positions(static_cast<std::size_t>(rows.size(0)));
  std::iota(positions.begin(), positions.end(), 0);
  const at::Tensor phases =
      phase_rows({inverse_frequency_, attention_factor_}, positions).unsqueeze(1).to(rows.device());
  const std::int64_t half = inverse_frequency_.size(0);
  const at::Tensor cos = phases.narrow(2, 0, half), sin = phases.narrow(2, half, half);
  if (!back) return undo_rope(rows, cos, -sin);
  const double squared = attention_factor_ * attention_factor_;  // rows and phases both have the factor
  return undo_rope(rows, cos / squared, sin / squared);
}

// 2-bit codes of the rotated row, or two levels, after the rounding to BF16 that every cache does.
at::Tensor CodebookEngine::through_codec(const SideTransform& transform, Side side, const at::Tensor& rows) const {
  at::Tensor x = to_basis(transform, rows).to(at::kBFloat16).to(at::kCPU, at::kFloat).contiguous();  // [H, T, d]
  const std::int64_t heads = x.size(0), tokens = x.size(1), d = x.size(2);
  for (std::int64_t head = 0; head < heads; ++head) {
    RowCodec codec{.code = transform.code(d, group_), .side = side, .encoder = encoder_};
    codec.clip = transform.clip.size() == 1 ? transform.clip[0] : transform.clip.at(static_cast<std::size_t>(head));
    float* row = x.mutable_data_ptr<float>() + head * tokens * d;
    if (transform.uniform_bits == 1) {
      two_level_rows(row, tokens, d, codec.code.quant_group, codec.clip);
    } else {
      quantise_rows(codec, row, tokens, d, row, d);
    }
  }
  return from_basis(transform, side, x.to(rows.device()));
}

bool CodebookEngine::knows_errors() const {
  return std::all_of(layers_.begin(), layers_.end(), [](const LayerTransform& layer) {
    return layer.key.codebook && layer.key.codebook->errors.defined();
  });
}

std::uint64_t CodebookEngine::error_bytes() const {
  std::uint64_t bytes = 0;
  for (const LayerTransform& layer : layers_) bytes += layer.key.codebook ? layer.key.codebook->error_bytes() : 0;
  return bytes;
}

at::Tensor CodebookEngine::added_variance(std::int64_t layer, const at::Tensor& keys) const {
  const SideTransform& transform = layer_at(layer).key;
  const bool unrotated = transform.codebook->before_rope;
  at::Tensor errors;  // [H, T, d]
  decode_encoded(*transform.codebook, to_basis(transform, unrotated ? apply_rope(keys, true) : keys), &errors);
  if (unrotated) {
    const std::int64_t half = keys.size(2) / 2, tokens = keys.size(0);
    const at::Tensor& forward = transform.orthogonal() ? transform.forward : transform.query_side;
    errors = at::matmul(errors, forward.to(keys.device(), at::kFloat).square().transpose(1, 2));
    // RoPE mixes the two channels of a plane by the position: the mean of both is what each has over all positions.
    const at::Tensor plane = errors.view({errors.size(0), tokens, 2, half}).mean(2);
    errors = at::cat({plane, plane}, 2) * (attention_factor_ * attention_factor_);
  }
  return errors.neg().transpose(0, 1).contiguous();
}

at::Tensor CodebookEngine::code_basis(std::int64_t layer, const at::Tensor& q) const {
  const LayerTransform& of_layer = layer_at(layer);
  const SideTransform& transform = of_layer.key;
  if (transform.codebook->before_rope) return q;
  const at::Tensor& forward = transform.orthogonal() ? transform.forward : transform.query_side;
  const std::int64_t tokens = q.size(0), d = q.size(2);
  const at::Tensor grouped = q.reshape({tokens, of_layer.kv_heads, q.size(1) / of_layer.kv_heads, d}).transpose(0, 1);
  const at::Tensor rotated = at::matmul(grouped, forward.to(q.device(), at::kFloat).unsqueeze(1));
  return rotated.transpose(0, 1).reshape(q.sizes()).contiguous();
}

at::Tensor CodebookEngine::reconstruct(std::int64_t layer, Side side, const at::Tensor& rows) const {
  if (!at::isfinite(rows).all().item<bool>()) {
    throw NumericalError("layer " + std::to_string(layer) + (side == Side::kKey ? ", keys" : ", values") +
                         " for codebooks are not finite (NaN or infinity)");
  }
  const SideTransform& transform = side_of(layer_at(layer), side);
  if (!transform.codebook) return through_codec(transform, side, rows);
  const bool unrotated = transform.codebook->before_rope;
  const at::Tensor x = to_basis(transform, unrotated ? apply_rope(rows, true) : rows);
  const at::Tensor decoded = from_basis(transform, side, decode_encoded(*transform.codebook, x));
  return unrotated ? apply_rope(decoded, false) : decoded;
}

}  // namespace oscar
