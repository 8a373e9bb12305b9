// A made model whose keys are centered before RoPE, and calls with keys of such a model.
#pragma once

#include <memory>

#include "attention/scenario.h"

namespace oscar {

// `bias`: size of the mean before RoPE, in deviations of a key.
inline Scenario rotated_scenario(const CacheWindows& windows, double bias, const RowCode& code,
                                 std::int64_t group = 2) {
  const std::int64_t d = code.head_dim;
  Scenario s = make_scenario(d, 2, group, Basis::kSkewed, windows, code, 0.0f);
  s.model.max_position = 4096;
  const std::vector<std::array<float, kBands>> sigma(2, {1.0f, 1.0f, 1.0f, 1.0f});
  for (LayerCode& code : s.method.codes) code.key_sigma = code.value_sigma = sigma;
  s.method.key_encoder = s.method.value_encoder = Encoder::kSearch;
  s.method.rope_phases = std::make_shared<const RopePhases>(rope_frequencies(s.model.rope, d, 4096));
  for (LayerTransform& t : s.method.layers) {
    t.key.rotated_mean = true;
    t.key.mean = normal(77, {2, d}) * bias;
  }
  return s;
}

inline Scenario rotated_scenario(const CacheWindows& windows, double bias) {
  return rotated_scenario(windows, bias, band_code(64, {4, 4, 4, 4}));
}

// Keys as a model with such biases makes them.
inline Call biased_call(const Scenario& s, const std::vector<std::int64_t>& lengths, std::uint64_t seed) {
  Call call = make_call(s, lengths, seed);
  std::int64_t offset = 0;
  for (const std::int64_t length : lengths) {
    const at::Tensor turned = rotated_means(s.method.layers[0].key.mean, s.method.rope_phases->rows(0, length));
    call.input.k.narrow(0, offset, length).add_(turned);
    offset += length;
  }
  return call;
}

}  // namespace oscar
