// Made models of two layers with a method of any transform, and calls of ragged batches on them.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cmath>
#include <memory>
#include <tuple>
#include <vector>

#include "attention/cached_attention.h"
#include "codec/rows.h"
#include "model/attention.h"

namespace oscar {

inline at::Tensor normal(std::uint64_t seed, at::IntArrayRef sizes) {
  at::Tensor x = at::empty(sizes, at::kFloat);
  float* data = x.data_ptr<float>();
  for (std::int64_t i = 0; i < x.numel(); ++i) data[i] = gaussian(seed, static_cast<std::uint64_t>(i));
  return x;
}

inline at::Tensor orthogonal(std::uint64_t seed, std::int64_t count, std::int64_t d) {
  return std::get<0>(at::linalg_qr(normal(seed, {count, d, d}).to(at::kDouble))).to(at::kFloat).contiguous();
}

struct Scenario {
  ModelConfig model;
  KvMethod method;
};

enum class Basis { kIdentity, kLayer, kHead, kCentered, kSkewed };

inline Scenario make_scenario(std::int64_t d, std::int64_t kv_heads, std::int64_t group, Basis basis,
                              const CacheWindows& windows, const RowCode& code, float clip = 0.95f) {
  Scenario s;
  s.model.layers = 2, s.model.kv_heads = kv_heads, s.model.query_heads = kv_heads * group, s.model.head_dim = d;
  s.method.id = "test";
  s.method.windows = windows;
  s.method.codes.assign(2, {code, code, {}, {}});
  if (basis == Basis::kIdentity) return s;
  for (std::int64_t layer = 0; layer < 2; ++layer) {
    LayerTransform t{layer, d, kv_heads, {}, {}};
    std::uint64_t seed = 1000 + 10 * static_cast<std::uint64_t>(layer);
    for (SideTransform* side : {&t.key, &t.value}) {
      const std::int64_t count = basis == Basis::kLayer ? 1 : kv_heads;
      side->forward = orthogonal(++seed, count, d);
      side->clip.assign(static_cast<std::size_t>(count), clip);
      if (basis == Basis::kCentered || basis == Basis::kSkewed) side->mean = normal(++seed, {kv_heads, d}) * 2;
      if (basis == Basis::kSkewed) {
        const at::Tensor stretch = (normal(++seed, {count, 1, d}) * 0.5).exp();
        const at::Tensor inverse = side->forward / stretch;  // [count, d, d]: (R S)^-T = R S^-1
        side->forward = (side->forward * stretch).contiguous();
        if (side == &t.key) side->query_side = inverse.contiguous();
        if (side == &t.value) side->inverse = inverse.transpose(1, 2).contiguous();
      }
    }
    s.method.layers.push_back(t);
  }
  return s;
}

struct Call {
  SequenceBatch batch;
  AttentionInput input;
};

inline Call make_call(const Scenario& s, const std::vector<std::int64_t>& lengths, std::uint64_t seed,
                      at::ScalarType dtype = at::kFloat) {
  Call call;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    call.batch.ids.push_back(static_cast<std::int64_t>(i) + 7), call.batch.starts.push_back(0);
    call.batch.lengths.push_back(lengths[i]);
  }
  const std::int64_t d = s.model.head_dim, tokens = call.batch.tokens();
  call.input.q = normal(seed, {tokens, s.model.query_heads, d}).to(dtype);
  call.input.k = (normal(seed + 1, {tokens, s.model.kv_heads, d}) + normal(seed + 2, {s.model.kv_heads, d})).to(dtype);
  call.input.v = (normal(seed + 3, {tokens, s.model.kv_heads, d}) + normal(seed + 4, {s.model.kv_heads, d})).to(dtype);
  call.input.scale = 1.0 / std::sqrt(static_cast<double>(d));
  return call;
}

}  // namespace oscar
