// The 2-bit codec of one row (one token of one KV head), in the interchange form of design section 4.
// This is the specification: runtime pages, prefill path and CUDA kernels give the same codes and parameters.
//
// Row x [d] FP32 (the BF16-rounded rotated key or value). Per group of G channels:
//   s = max(max - min, 1e-8) / 3,  z = -min / s   (float zero point; both then rounded to 16 bits)
//   q = trunc(x/s + z + 0.5) clamped to 0..3, computed from s and z as stored;   xhat = (q - z) s
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace oscar {

enum class ParamType : std::uint8_t { kFloat16, kBFloat16 };
enum class Encoder : std::uint8_t { kMinMax, kSearch };  // how s, z and codes are chosen; readers never see it

struct UniformCode {
  int head_dim = 128;  // d
  int group = 128;     // G, divides d
  ParamType params = ParamType::kFloat16;
  int groups() const { return head_dim / group; }
  int code_bytes() const { return head_dim / 4; }
  int param_bytes() const { return groups() * 4; }  // s and z of each group
  double bits_per_element() const { return 8.0 * (code_bytes() + param_bytes()) / head_dim; }
};

// One encoded row. codes: [d] values 0..3; scale, zero: [groups], already rounded to ParamType.
struct EncodedRow {
  std::vector<std::uint8_t> codes;
  std::vector<float> scale, zero;
};

// Clip of design section 4: threshold = ascending |x| at index min(int(rho d), d - 1), x clamped to +-threshold.
// rho <= 0 or rho == 1: off. In place.
void clip_row(std::span<float> row, float rho);

EncodedRow encode_row(std::span<const float> row, const UniformCode& code, float clip = 0.0f,
                      Encoder encoder = Encoder::kMinMax);
void decode_row(const EncodedRow& encoded, const UniformCode& code, std::span<float> row);

// Byte b of d/4 = q[b] | q[b + d/4] << 2 | q[b + d/2] << 4 | q[b + 3d/4] << 6.
void pack_codes(std::span<const std::uint8_t> codes, std::span<std::uint8_t> bytes);
void unpack_codes(std::span<const std::uint8_t> bytes, std::span<std::uint8_t> codes);

// Round to nearest even, through the 16-bit type and back.
float round_to_bfloat16(float value);
float round_to_float16(float value);

}  // namespace oscar
