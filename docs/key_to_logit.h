// How a 2-bit KV cache works: one key of one head, from RoPE to the logit of a later query, in plain C++.
//
// The steps are those of method `oscar` with layout `uniform`, as the commands and the kernels run them on many rows at
// once. tests/cache/key_to_logit_test.cpp compares their bytes and logits with this file. The first and the last tokens
// of a sequence stop after step 1: they stay in the BF16 windows.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "layout/float16.h"

namespace oscar::key_to_logit {

using Row = std::vector<float>;  // [d] of one token and one head

struct CodedKey {
  std::vector<std::uint8_t> bytes;         // [d / 4]: byte b holds channels b, b + d/4, b + d/2 and b + 3d/4
  std::vector<std::uint16_t> scale, zero;  // [d / group] FP16 bits
};

// 1. Rotate. M spreads outlier channels over all channels and puts errors where queries do not look. matrix: [d, d],
//    row-major. The cache stores BF16 rows in its windows, and codes are made of the same rounded numbers.
inline Row rotate(const Row& key, const Row& matrix) {
  const std::size_t d = key.size();
  Row out(d);
  for (std::size_t i = 0; i < d; ++i) {
    for (std::size_t j = 0; j < d; ++j) out[j] += key[i] * matrix[i * d + j];
  }
  for (float& x : out) x = bfloat16_value(bfloat16_bits(x));
  return out;
}

// 2. Clip at a quantile of the magnitudes: a few large numbers would widen the steps between codes for all others.
inline Row clip(Row x, float ratio) {
  Row magnitude(x.size());
  std::transform(x.begin(), x.end(), magnitude.begin(), [](float v) { return std::fabs(v); });
  std::sort(magnitude.begin(), magnitude.end());
  const auto at = static_cast<std::size_t>(ratio * static_cast<float>(x.size()));
  const float limit = magnitude[std::min(at, x.size() - 1)];
  for (float& v : x) v = std::clamp(v, -limit, limit);
  return x;
}

// 3. Pack. Each group of channels has four levels between its minimum and its maximum: x = (code - zero) * scale.
inline CodedKey pack(const Row& x, std::size_t group) {
  const std::size_t d = x.size(), quarter = d / 4;
  CodedKey key{std::vector<std::uint8_t>(quarter), {}, {}};
  for (std::size_t first = 0; first < d; first += group) {
    const auto [low, high] = std::minmax_element(&x[first], &x[first] + group);
    key.scale.push_back(float16_bits(std::max(*high - *low, 1e-8f) / 3.0f));
    const float scale = float16_value(key.scale.back());
    key.zero.push_back(float16_bits(-*low / scale));
    const float zero = float16_value(key.zero.back());
    for (std::size_t i = first; i < first + group; ++i) {
      const auto code = static_cast<unsigned>(std::clamp(x[i] / scale + zero + 0.5f, 0.0f, 3.0f));
      key.bytes[i % quarter] = static_cast<std::uint8_t>(key.bytes[i % quarter] | code << (2 * (i / quarter)));
    }
  }
  return key;
}

// 4. Read back, in the rotated basis. The key is never rotated back: step 5 rotates the query instead, once.
inline Row read(const CodedKey& key) {
  const std::size_t quarter = key.bytes.size(), d = 4 * quarter, group = d / key.scale.size();
  Row x(d);
  for (std::size_t i = 0; i < d; ++i) {
    const unsigned code = key.bytes[i % quarter] >> (2 * (i / quarter)) & 3u;
    x[i] = (static_cast<float>(code) - float16_value(key.zero[i / group])) * float16_value(key.scale[i / group]);
  }
  return x;
}

// 5. The logit: M is orthogonal, so <q M, k M> = <q, k>, but for the error of the codes. scale: 1 / sqrt(d) mostly.
inline float logit(const Row& query, const Row& matrix, const CodedKey& key, float scale) {
  const Row q = rotate(query, matrix), k = read(key);
  float dot = 0.0f;
  for (std::size_t i = 0; i < k.size(); ++i) dot += q[i] * k[i];
  return dot * scale;
}

}  // namespace oscar::key_to_logit
