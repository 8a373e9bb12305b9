#include "codec/codec.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "codec/blocks.h"
#include "codec/feedback.h"
#include "codec/float16.h"
#include "codec/row_math.h"
#include "codec/uniform.h"

namespace oscar {
namespace {

[[noreturn]] void refuse_row(const float* row, std::int64_t index, int d) {
  for (int i = 0; i < d; ++i) {
    if (!std::isfinite(row[i])) {
      throw NumericalError("row " + std::to_string(index) + " to be quantised holds " +
                           (std::isnan(row[i]) ? "a NaN" : "an infinity") + " in channel " + std::to_string(i) +
                           "; expected finite keys and values");
    }
  }
  throw NumericalError("row " + std::to_string(index) + " to be quantised is not finite");
}

void check_codec(const RowCodec& codec) {
  validate(codec.code);
  if (codec.encoder != Encoder::kFeedback) return;
  if (!codec.metric || codec.metric->channels() != feedback_channels(codec.code)) {
    throw InputError("encoder feedback needs the metric of the head, in blocks of " +
                     std::to_string(feedback_channels(codec.code)) + " channels");
  }
}

}  // namespace

int RowCode::code_bytes() const {
  if (layout == Layout::kUniform) return head_dim / 4;
  int bits = 0;
  for (const int w : widths) bits += w * block_channels();
  return bits / 8;
}

int RowCode::param_bytes() const {
  if (layout == Layout::kUniform) return groups() * 4;
  return static_cast<int>(std::count_if(widths.begin(), widths.end(), [](int w) { return w > 0; }));
}

RowCode uniform_code(int head_dim, int group, ParamType params) {
  RowCode code{Layout::kUniform, head_dim, group > 0 ? group : head_dim, params};
  validate(code);
  return code;
}

RowCode block_code(int head_dim, const std::array<std::uint8_t, kBlocks>& widths) {
  RowCode code{.layout = Layout::kBlocks, .head_dim = head_dim, .group = head_dim, .widths = widths};
  validate(code);
  return code;
}

void validate(const RowCode& code) {
  const std::string d = std::to_string(code.head_dim);
  if (code.head_dim < 4 || code.head_dim > kMaxHeadDim) {
    throw InputError("head_dim " + d + " cannot be quantised; expected 4 to " + std::to_string(kMaxHeadDim));
  }
  if (code.layout == Layout::kUniform) {
    if (code.head_dim % 4 != 0) throw InputError("head_dim " + d + " is not a multiple of 4, as 2-bit packing needs");
    if (code.group < 1 || code.head_dim % code.group != 0) {
      throw InputError("quantisation group " + std::to_string(code.group) + " does not divide head_dim " + d);
    }
    return;
  }
  if (code.head_dim % 32 != 0) throw InputError("layout blocks needs a head_dim that 32 divides; found " + d);
  for (const int w : code.widths) {
    if (w != 0 && w != 1 && w != 2 && w != 4) {
      throw InputError("block width " + std::to_string(w) + " is not one of 0, 1, 2, 4");
    }
  }
}

std::string to_string(Encoder encoder) {
  return encoder == Encoder::kMinMax ? "minmax" : (encoder == Encoder::kSearch ? "search" : "feedback");
}
std::string to_string(Layout layout) { return layout == Layout::kUniform ? "uniform" : "blocks"; }

Encoder parse_encoder(const std::string& name) {
  if (name == "minmax") return Encoder::kMinMax;
  if (name == "search") return Encoder::kSearch;
  if (name == "feedback") return Encoder::kFeedback;
  throw InputError("encoder '" + name + "' is not known; expected minmax, search or feedback");
}

void encode_rows(const RowCodec& codec, const float* rows, std::int64_t n, std::int64_t stride, std::uint8_t* codes,
                 std::uint8_t* params) {
  check_codec(codec);
  if (stride == 0) stride = codec.code.head_dim;
  std::int64_t bad = -1;
  const bool sound = codec.code.layout == Layout::kUniform
                         ? uniform::encode_rows(codec, rows, n, stride, codes, params, &bad)
                         : blocks::encode_rows(codec, rows, n, stride, codes, params, &bad);
  if (!sound) refuse_row(rows + bad * stride, bad, codec.code.head_dim);
}

void decode_rows(const RowCodec& codec, const std::uint8_t* codes, const std::uint8_t* params, std::int64_t n,
                 float* rows, std::int64_t stride) {
  validate(codec.code);
  if (stride == 0) stride = codec.code.head_dim;
  if (codec.code.layout == Layout::kUniform) {
    uniform::decode_rows(codec.code, codes, params, n, rows, stride);
  } else {
    blocks::decode_rows(codec, codes, params, n, rows, stride);
  }
}

void quantise_rows(const RowCodec& codec, const float* rows, std::int64_t n, std::int64_t stride, float* out,
                   std::int64_t out_stride) {
  constexpr std::int64_t kBatch = 16;  // rows whose codes stay in the first-level cache between the two steps
  std::uint8_t codes[kBatch * kMaxHeadDim], params[kBatch * kMaxHeadDim * 4];
  check_codec(codec);
  const std::int64_t d = codec.code.head_dim;
  if (stride == 0) stride = d;
  if (out_stride == 0) out_stride = d;
  for (std::int64_t r = 0; r < n; r += kBatch) {
    const std::int64_t batch = std::min(kBatch, n - r);
    std::int64_t bad = -1;
    const bool sound = codec.code.layout == Layout::kUniform
                           ? uniform::encode_rows(codec, rows + r * stride, batch, stride, codes, params, &bad)
                           : blocks::encode_rows(codec, rows + r * stride, batch, stride, codes, params, &bad);
    if (!sound) refuse_row(rows + (r + bad) * stride, r + bad, static_cast<int>(d));
    decode_rows(codec, codes, params, batch, out + r * out_stride, out_stride);
  }
}

EncodedRow encode_row(std::span<const float> row, const RowCode& code, float clip, Encoder encoder, Side side) {
  validate(code);
  if (code.layout != Layout::kUniform || row.size() != static_cast<std::size_t>(code.head_dim)) {
    throw InputError("encode_row takes one row of the uniform layout; found " + std::to_string(row.size()) +
                     " channels, layout " + to_string(code.layout));
  }
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

void decode_row(const EncodedRow& encoded, const RowCode& code, std::span<float> row) {
  for (std::size_t i = 0; i < row.size(); ++i) {
    const std::size_t g = i / static_cast<std::size_t>(code.group);
    row[i] = (static_cast<float>(encoded.codes[i]) - encoded.zero[g]) * encoded.scale[g];
  }
}

void clip_row(std::span<float> row, float rho) {
  const int d = static_cast<int>(row.size());
  if (d > kMaxHeadDim) throw InputError("a row of " + std::to_string(d) + " channels is longer than any head");
  std::uint32_t scratch[kMaxHeadDim];
  float clipped[kMaxHeadDim];
  if (!row_math::load_clipped(row.data(), d, rho, scratch, clipped)) refuse_row(row.data(), 0, d);
  std::copy_n(clipped, d, row.begin());
}

void pack_codes(const RowCode& code, std::span<const std::uint8_t> codes, std::span<std::uint8_t> bytes) {
  if (code.layout == Layout::kUniform) {
    const std::size_t quarter = bytes.size();
    for (std::size_t b = 0; b < quarter; ++b) {
      bytes[b] = static_cast<std::uint8_t>(codes[b] | codes[b + quarter] << 2 | codes[b + 2 * quarter] << 4 |
                                           codes[b + 3 * quarter] << 6);
    }
    return;
  }
  std::fill(bytes.begin(), bytes.end(), std::uint8_t{0});
  std::size_t bit = 0, channel = 0;
  for (const int w : code.widths) {
    for (int i = 0; i < code.block_channels(); ++i, bit += static_cast<std::size_t>(w), ++channel) {
      if (w > 0) bytes[bit / 8] = static_cast<std::uint8_t>(bytes[bit / 8] | codes[channel] << (bit % 8));
    }
  }
}

void unpack_codes(const RowCode& code, std::span<const std::uint8_t> bytes, std::span<std::uint8_t> codes) {
  if (code.layout == Layout::kUniform) {
    const std::size_t quarter = bytes.size();
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = (bytes[i % quarter] >> (2 * (i / quarter))) & 3u;
    return;
  }
  std::size_t bit = 0, channel = 0;
  for (const int w : code.widths) {
    const unsigned mask = (1u << w) - 1u;
    for (int i = 0; i < code.block_channels(); ++i, bit += static_cast<std::size_t>(w), ++channel) {
      codes[channel] = w > 0 ? static_cast<std::uint8_t>((bytes[bit / 8] >> (bit % 8)) & mask) : std::uint8_t{0};
    }
  }
}

float round_to_bfloat16(float value) { return bfloat16_value(bfloat16_bits(value)); }
float round_to_float16(float value) { return float16_value(float16_bits(value)); }

}  // namespace oscar
