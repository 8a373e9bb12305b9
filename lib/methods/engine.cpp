#include "methods/engine.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/parallel.h"
#include "methods/tile_codes.h"

namespace oscar {
namespace {

constexpr std::int64_t kCalibrationTokens = 128;

at::Tensor as_float(const at::Tensor& x) { return x.to(at::kFloat).contiguous(); }

// Codes all complete tiles after the sink, in place. rows: [T, H, d] contiguous.
void code_rows(const SideCode& side, at::Tensor& rows) {
  const std::int64_t tokens = rows.size(0), heads = rows.size(1), d = rows.size(2);
  const std::int64_t tile = tile_tokens(side), begin = std::min(side.windows.sink, tokens);
  const std::int64_t count = tile > 1 ? (tokens - begin) / tile * tile : tokens - begin;
  if (count <= 0) return;
  const std::int64_t step = tile > 1 ? tile : 64, blocks = (count + step - 1) / step;
  auto* data = rows.mutable_data_ptr<float>();
  parallel_ranges(blocks * heads, 1, [&](std::int64_t from, std::int64_t to) {
    for (std::int64_t i = from; i < to; ++i) {
      const std::int64_t head = i % heads, first = i / heads * step, at = ((begin + first) * heads + head) * d;
      code_tile(side, data + at, std::min(step, count - first), d, heads * d);
    }
  });
}

// [T, H, d] times m: [H, d, d].
at::Tensor multiplied(const at::Tensor& rows, const at::Tensor& m) {
  return at::bmm(rows.transpose(0, 1), m).transpose(0, 1).contiguous();
}

}  // namespace

void require_fit(const MethodSpec& description, const ModelConfig& model) {
  if (model.is_latent() && !(description.key == description.value)) {
    throw UsageError("Method " + description.id + " codes keys and values differently, and the latent attention of " +
                     model.architecture + " caches one row for both");
  }
  require_fit(description, static_cast<int>(model.head_dim));
}

MethodEngine::MethodEngine(const MethodSpec& description, const ModelConfig& model)
    : description_(description),
      layers_(model.kv_layers()),
      heads_(model.kv_heads),
      head_dim_(model.head_dim),
      rope_dim_(model.latent.rope_dim) {
  require_fit(description, model);
  for (const SideCode* s : {&description_.key, &description_.value}) {
    if (s->basis != CacheBasis::kRandom || random_low_.defined()) continue;
    const std::int64_t boosted = std::llround(s->boosted_share * static_cast<double>(head_dim_));
    random_boosted_ = boosted == 0 ? at::empty({0, 0}) : as_float(random_orthogonal(boosted, kRotationSeed));
    random_low_ = as_float(random_orthogonal(head_dim_ - boosted, kRotationSeed + 1));
  }
}

double MethodEngine::bits_per_element() const {
  const int d = static_cast<int>(head_dim_);
  return 0.5 * (oscar::bits_per_element(description_.key, d) + oscar::bits_per_element(description_.value, d));
}

double MethodEngine::bits_per_element_at(std::int64_t context) const {
  const std::int64_t elements = layers_ * ((rope_dim_ > 0 ? 1 : 2) * heads_ * head_dim_ + rope_dim_);
  return 8.0 * held(context) / static_cast<double>(elements * std::max<std::int64_t>(context, 1));
}

// Matrices for kRandom: [H, d, d].
at::Tensor MethodEngine::basis_matrix(const at::Tensor& rows) const {
  // Channels sorted by energy, largest first; each part has its own rotation.
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

at::Tensor MethodEngine::reconstruct(Side which, const at::Tensor& rows) const {
  const SideCode& s = side(which);
  if (!at::isfinite(rows).all().item<bool>()) {
    throw NumericalError(std::string(which == Side::kKey ? "keys" : "values") + " for method '" + description_.id +
                         "' are not finite (NaN or infinity)");
  }
  at::Tensor x = as_float(rows.cpu()), matrix;
  if (s.basis == CacheBasis::kRandom) {
    matrix = basis_matrix(x);
    x = multiplied(x, matrix);
  }
  x = x.contiguous().clone();
  code_rows(s, x);
  if (matrix.defined()) x = multiplied(x.contiguous(), matrix.transpose(1, 2).contiguous());
  return x.contiguous().to(rows.device());
}

double MethodEngine::held(std::int64_t tokens) const {
  double coded = 0;
  for (const SideCode* s : {&description_.key, &description_.value}) {
    coded += held_bytes(*s, static_cast<int>(heads_), static_cast<int>(head_dim_), tokens);
    if (rope_dim_ > 0) break;  // values are the keys
  }
  return static_cast<double>(layers_) * (coded + static_cast<double>(2 * rope_dim_ * tokens));
}

std::uint64_t MethodEngine::allocated_bytes(std::int64_t tokens) const {
  return static_cast<std::uint64_t>(std::ceil(held(tokens)));
}

}  // namespace oscar
