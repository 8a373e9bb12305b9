// One row of the uniform layout in plain numbers, for tests that work out by hand what the codec stores.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "codec/codec.h"
#include "layout/float16.h"

namespace oscar {

// codes: [d] values 0..3; scale, zero: [groups], as stored.
struct EncodedRow {
  std::vector<std::uint8_t> codes;
  std::vector<float> scale, zero;
};

inline EncodedRow encode_row(std::span<const float> row, const RowCode& code, float clip = 0.0f,
                             Encoder encoder = Encoder::kMinMax, Side side = Side::kKey) {
  EncodedRow result;
  result.codes.resize(row.size());
  std::vector<std::uint8_t> params(static_cast<std::size_t>(code.param_bytes()));
  encode_rows({code, side, encoder, clip}, row.data(), 1, 0, result.codes.data(), params.data());
  const bool half = code.params == ParamType::kFloat16;
  for (std::size_t i = 0; i < params.size(); i += 2) {
    const auto bits = static_cast<std::uint16_t>(params[i] | params[i + 1] << 8);
    (i % 4 == 0 ? result.scale : result.zero).push_back(half ? float16_value(bits) : bfloat16_value(bits));
  }
  return result;
}

inline void decode_row(const EncodedRow& encoded, const RowCode& code, std::span<float> row) {
  for (std::size_t i = 0; i < row.size(); ++i) {
    const std::size_t g = i / static_cast<std::size_t>(code.quant_group);
    row[i] = (static_cast<float>(encoded.codes[i]) - encoded.zero[g]) * encoded.scale[g];
  }
}

}  // namespace oscar
