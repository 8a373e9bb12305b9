#include "methods/engine.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "methods/device_codes.h"
#include "methods/gaussian_vectors.h"
#include "methods/group_codes.h"
#include "methods/hadamard_rows.h"
#include "methods/tile_codes.h"
#include "model/rope.h"

namespace oscar {
namespace {

constexpr std::int64_t kCalibrationTokens = 128;

// Tiles that lose their mean do so before RoPE, but what is left is coded behind it.
bool coded_before_rope(const SideCode& s) { return s.before_rope && s.shift_tile == 0; }

at::Tensor as_float(const at::Tensor& x) { return x.to(at::kFloat).contiguous(); }

// [..., d] rotated by the positions of the tokens, half-split pairs; sign -1 undoes it.
at::Tensor apply_rope(const at::Tensor& x, const at::Tensor& inverse_frequency, double sign) {
  const std::int64_t tokens = x.size(0), half = x.size(2) / 2;
  const at::Tensor positions = at::arange(tokens, x.options().dtype(at::kFloat));
  const at::Tensor angle = positions.unsqueeze(1) * inverse_frequency.to(x.device()).unsqueeze(0);  // [T, d/2]
  const at::Tensor cos = angle.cos().unsqueeze(1), sin = angle.sin().unsqueeze(1) * sign;
  const at::Tensor a = x.narrow(2, 0, half), b = x.narrow(2, half, half);
  return at::cat({a * cos - b * sin, b * cos + a * sin}, 2);
}

// Channels of [T, C] in ascending order of their sum over the first tokens.
at::Tensor channel_order(const at::Tensor& flat) {
  const std::int64_t count = std::min(kCalibrationTokens, flat.size(0));
  return std::get<1>(flat.narrow(0, 0, count).to(at::kDouble).sum(0).sort(/*stable=*/true, 0, false));
}

// Codes all complete tiles from the sink on, in place. rows: [T, H, d] contiguous.
void code_rows(const SideCode& side, bool is_value, at::Tensor& rows) {
  const std::int64_t tokens = rows.size(0), heads = rows.size(1), d = rows.size(2);
  const std::int64_t tile = tile_tokens(side), begin = std::min(side.windows.sink, tokens);
  const std::int64_t count = tile > 1 ? (tokens - begin) / tile * tile : tokens - begin;
  if (count <= 0) return;
  if (rows.is_cuda()) return code_rows_on_device(side, is_value, rows.narrow(0, begin, count));
  const std::int64_t step = tile > 1 ? tile : 64, blocks = (count + step - 1) / step;
  auto* data = rows.mutable_data_ptr<float>();
  at::parallel_for(0, blocks * heads, 1, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t i = from; i < to; ++i) {
      const std::int64_t head = i % heads, first = i / heads * step, at = ((begin + first) * heads + head) * d;
      code_tile(side, is_value, data + at, std::min(step, count - first), d, heads * d);
    }
  });
}

// Hadamard of blocks of `order` channels, which may reach over heads. rows: [T, H, d] contiguous.
at::Tensor transformed(const at::Tensor& rows, std::int64_t order) {
  at::Tensor out = rows.clone();
  if (rows.is_cuda()) {
    hadamard_on_device(out, order);
    return out;
  }
  auto* data = out.mutable_data_ptr<float>();
  const std::int64_t width = rows.size(1) * rows.size(2);
  at::parallel_for(0, rows.size(0), 64, [&](std::int64_t begin, std::int64_t end) {
    hadamard_rows(data + begin * width, end - begin, width, width, order);
  });
  return out;
}

at::Tensor token_norms(const at::Tensor& rows) {  // [T, 1, 1]
  const std::int64_t tokens = rows.size(0), width = rows.size(1) * rows.size(2);
  if (rows.is_cuda()) return token_norms_on_device(rows);
  at::Tensor norms = at::empty({tokens, 1, 1});
  for (std::int64_t t = 0; t < tokens; ++t) {
    norms.mutable_data_ptr<float>()[t] = group_codes::token_norm(rows.const_data_ptr<float>() + t * width, width);
  }
  return norms;
}

// Complete tiles of x, [T, H, d] contiguous, from the sink on are normalised and lose their mean, in place. Returns the
// norms [T, H, 1] and means [T, H, d], 1 and 0 elsewhere.
std::pair<at::Tensor, at::Tensor> normalised_and_shifted(const SideCode& side, at::Tensor& x) {
  const std::int64_t tokens = x.size(0), heads = x.size(1), d = x.size(2), tile = side.shift_tile;
  const std::int64_t begin = std::min(side.windows.sink, tokens), tiles = (tokens - begin) / tile;
  x = x.contiguous().clone();
  at::Tensor norm = at::ones({tokens, heads, 1}), mean = at::zeros({tokens, heads, d});
  auto *rows = x.mutable_data_ptr<float>(), *norms = norm.mutable_data_ptr<float>(),
       *means = mean.mutable_data_ptr<float>();
  at::parallel_for(0, tiles * heads, 1, [&](std::int64_t from, std::int64_t to) {
    std::vector<float> of_tile(static_cast<std::size_t>(tile)), of_channel(static_cast<std::size_t>(d));
    for (std::int64_t i = from; i < to; ++i) {
      const std::int64_t first = (begin + i / heads * tile) * heads + i % heads;  // row of [T, H]
      normalise_and_shift(rows + first * d, tile, d, heads * d, of_tile.data(), of_channel.data());
      for (std::int64_t t = 0; t < tile; ++t) {
        norms[first + t * heads] = of_tile[static_cast<std::size_t>(t)];
        std::copy_n(of_channel.data(), d, means + (first + t * heads) * d);
      }
    }
  });
  return {norm, mean};
}

// [T, H, d] times m: [n, w, w], one matrix of all heads or of parts of w channels, or one for each head.
at::Tensor multiplied(const at::Tensor& rows, const at::Tensor& m) {
  const std::int64_t width = m.size(1);
  if (m.size(0) == 1) return at::mm(rows.reshape({-1, width}), m[0]).view(rows.sizes());
  return at::bmm(rows.transpose(0, 1), m).transpose(0, 1).contiguous();
}

}  // namespace

void require_apart(const std::string& what, const ModelConfig& model) {
  if (!model.is_latent()) return;
  throw UsageError(what + " codes keys and values apart, and the latent attention of " + model.architecture +
                   " caches one vector for both; take naive2, hadamard2, or a bundle of oscar, balanced or waterfill");
}

void require_fit(const MethodSpec& description, const ModelConfig& model) {
  require_apart("Method " + description.id, model);
  require_fit(description, static_cast<int>(model.kv_heads), static_cast<int>(model.head_dim));
}

MethodEngine::MethodEngine(const MethodSpec& description, const ModelConfig& model)
    : description_(description), layers_(model.kv_layers()), heads_(model.kv_heads), head_dim_(model.head_dim) {
  require_fit(description, model);
  // A model with fewer than four layers for each protected one has no inner layers worth the name: all are coded.
  boundary_ = layers_ >= 4 * description.boundary_layers ? description.boundary_layers : 0;
  for (const SideCode* s : {&description_.key, &description_.value}) {
    if (s->basis != CacheBasis::kRandom || random_.defined() || random_low_.defined()) continue;
    if (s->boosted_share > 0) {
      const std::int64_t boosted = std::llround(s->boosted_share * static_cast<double>(head_dim_));
      random_boosted_ = as_float(random_orthogonal(boosted, kRotationSeed));
      random_low_ = as_float(random_orthogonal(head_dim_ - boosted, kRotationSeed + 1));
    } else {
      random_ = as_float(random_orthogonal(head_dim_, kRotationSeed));
    }
  }
  if (description_.key.before_rope) {
    require_full_rope(model, "The method " + description.id + ", which codes keys before RoPE,");
    const RopeFrequencies frequencies = common_rope(model);
    inverse_frequency_ = frequencies.inverse.to(at::kFloat);
    attention_factor_ = frequencies.attention_factor;
  }
}

bool MethodEngine::quantised(std::int64_t layer) const { return layer >= boundary_ && layer < layers_ - boundary_; }

double MethodEngine::bits_per_element() const {
  const int heads = static_cast<int>(heads_), d = static_cast<int>(head_dim_);
  return 0.5 *
         (oscar::bits_per_element(description_.key, heads, d) + oscar::bits_per_element(description_.value, heads, d));
}

double MethodEngine::bits_per_element_at(std::int64_t context) const {
  const double elements = 2.0 * static_cast<double>(layers_ * heads_ * head_dim_ * std::max<std::int64_t>(context, 1));
  return 8.0 * held(context) / elements;
}

// Order of the Hadamard blocks of a row; 0: the basis is none.
std::int64_t MethodEngine::hadamard_order(const SideCode& side) const {
  if (side.basis == CacheBasis::kHadamard) return hadamard_order_of(side, head_dim_);
  if (side.basis == CacheBasis::kGroupedHeads) return std::min<std::int64_t>(side.basis_size, heads_) * head_dim_;
  return 0;
}

// Of kRandom: [n, w, w], n matrices for as many parts of w channels each, or one for all parts.
at::Tensor MethodEngine::basis_matrix(const at::Tensor& rows) const {
  if (random_.defined()) return random_.to(rows.device()).t().unsqueeze(0);
  // The channels of largest energy first, each part with a rotation of its own.
  const std::int64_t boosted = random_boosted_.size(0), count = std::min(kCalibrationTokens, rows.size(0));
  const at::Tensor energy = rows.narrow(0, 0, count).to(at::kDouble).square().sum(0);  // [H, d]
  const at::Tensor order = std::get<1>(energy.sort(/*stable=*/true, 1, true));
  at::Tensor matrices = at::zeros({heads_, head_dim_, head_dim_}, rows.options());
  for (std::int64_t h = 0; h < heads_; ++h) {
    at::Tensor parts = at::zeros({head_dim_, head_dim_}, rows.options());
    parts.narrow(0, 0, boosted).narrow(1, 0, boosted).copy_(random_boosted_.t());
    parts.narrow(0, boosted, head_dim_ - boosted).narrow(1, boosted, head_dim_ - boosted).copy_(random_low_.t());
    matrices[h].index_copy_(0, order[h], parts);  // row c of the matrix belongs to channel c
  }
  return matrices;
}

// Rows after their code, still in its basis, and what leads back.
struct MethodEngine::Coded {
  at::Tensor rows;    // [T, H, d]
  at::Tensor order;   // [H d] channels by place, where the method sorts them
  at::Tensor norm;    // [T, 1, 1] where tokens were divided by theirs, [T, H, 1] where those of a head were
  at::Tensor shift;   // [T, H, d] mean of the tile in the model's basis, before it is multiplied by the norm
  at::Tensor matrix;  // of kRandom
};

MethodEngine::Coded MethodEngine::coded_rows(Side which, const at::Tensor& rows) const {
  const SideCode& s = side(which);
  if (!at::isfinite(rows).all().item<bool>()) {
    throw NumericalError(std::string(which == Side::kKey ? "keys" : "values") + " for method '" + description_.id +
                         "' are not finite (NaN or infinity)");
  }
  const std::int64_t tokens = rows.size(0);
  Coded coded;
  at::Tensor x = rows.to(at::kFloat).contiguous();
  if (s.before_rope) x = apply_rope(x, inverse_frequency_, -1.0) / attention_factor_;
  if (s.shift_tile > 0) {
    std::tie(coded.norm, coded.shift) = normalised_and_shifted(s, x);
    if (s.before_rope) {
      x = apply_rope(x, inverse_frequency_, 1.0);
      coded.shift = apply_rope(coded.shift, inverse_frequency_, 1.0);
      coded.norm = coded.norm * attention_factor_;
    }
  }
  if (const std::int64_t order = hadamard_order(s); order > 0) {
    x = transformed(x, order);
  } else if (s.basis != CacheBasis::kNone) {
    coded.matrix = basis_matrix(x);
    x = multiplied(x, coded.matrix);
  }
  if (s.reorder) {
    coded.order = channel_order(x.reshape({tokens, heads_ * head_dim_}));
    x = x.reshape({tokens, heads_ * head_dim_}).index_select(1, coded.order).view({tokens, heads_, head_dim_});
  }
  if (s.token_norm) {
    coded.norm = token_norms(x);
    x = x / coded.norm;
  }
  coded.rows = x.contiguous().clone();
  code_rows(s, which == Side::kValue, coded.rows);
  return coded;
}

// [T, H, d] as sorted, back where the channels were.
at::Tensor MethodEngine::in_head_order(const Coded& coded, const at::Tensor& x) const {
  if (!coded.order.defined()) return x;
  const std::int64_t tokens = x.size(0);
  at::Tensor back = at::empty({tokens, heads_ * head_dim_}, x.options());
  back.index_copy_(1, coded.order, x.reshape({tokens, heads_ * head_dim_}));
  return back.view({tokens, heads_, head_dim_});
}

at::Tensor MethodEngine::reconstruct(Side which, const at::Tensor& rows) const {
  const SideCode& s = side(which);
  if (rows.is_cuda() && s.shift_tile > 0) return reconstruct(which, rows.cpu()).to(rows.device());  // no kernel
  const Coded coded = coded_rows(which, rows);
  at::Tensor x = coded.norm.defined() ? coded.rows * coded.norm : coded.rows;
  x = in_head_order(coded, x);
  if (const std::int64_t order = hadamard_order(s); order > 0) x = transformed(x.contiguous(), order);
  if (coded.matrix.defined()) x = multiplied(x.contiguous(), coded.matrix.transpose(1, 2).contiguous());
  if (coded.shift.defined()) return (x + coded.shift * coded.norm).contiguous();
  if (s.before_rope) x = apply_rope(x, inverse_frequency_, 1.0) * attention_factor_;
  return x.contiguous();
}

double MethodEngine::held(std::int64_t tokens) const {
  const bool paged = has_pages(description_);
  double coded = 0;
  for (const SideCode* s : {&description_.key, &description_.value}) {
    coded += held_bytes(*s, paged, static_cast<int>(heads_), static_cast<int>(head_dim_), tokens);
  }
  const double full = 4.0 * static_cast<double>(heads_ * head_dim_ * tokens);  // both sides in BF16
  return static_cast<double>(layers_ - 2 * boundary_) * coded + 2.0 * static_cast<double>(boundary_) * full;
}

std::uint64_t MethodEngine::allocated_bytes(std::int64_t tokens) const {
  return static_cast<std::uint64_t>(std::ceil(held(tokens)));
}

}  // namespace oscar
