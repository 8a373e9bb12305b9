#include "codec/codec.h"

#include <algorithm>
#include <cmath>

#include "base/errors.h"
#include "base/foreign_text.h"
#include "codec/layouts.h"

namespace oscar {
namespace {

// The codec of a layout; layouts.h describes its functions.
struct LayoutCodec {
  RowEncoder encode;
  decltype(&uniform::decode_rows) decode;
};

// One row per layout, in the order of Layout.
constexpr LayoutCodec kCodecs[] = {
    {uniform::encode_rows, uniform::decode_rows},
    {blocks::encode_rows, blocks::decode_rows},
};

const LayoutCodec& of(const RowCode& code) { return kCodecs[static_cast<std::size_t>(code.layout)]; }

[[noreturn]] void refuse_row(const float* row, std::int64_t index, int d) {
  for (int i = 0; i < d; ++i) {
    if (!std::isfinite(row[i])) {
      throw NumericalError("row " + std::to_string(index) + " to be quantized holds " +
                           (std::isnan(row[i]) ? "a NaN" : "an infinity") + " in channel " + std::to_string(i) +
                           "; expected finite keys and values");
    }
  }
  throw NumericalError("row " + std::to_string(index) + " to be quantized is not finite");
}

}  // namespace

std::string to_string(Encoder encoder) { return encoder == Encoder::kMinMax ? "minmax" : "search"; }

Encoder parse_encoder(const std::string& name) {
  if (name == "minmax") return Encoder::kMinMax;
  if (name == "search") return Encoder::kSearch;
  throw InputError("encoder " + quote_name(name) + " is not known; expected minmax or search");
}

RowEncoder row_encoder(const RowCodec& codec) {
  validate(codec.code);
  return of(codec.code).encode;
}

void encode_rows(const RowCodec& codec, const float* rows, std::int64_t n, std::int64_t stride, std::uint8_t* codes,
                 std::uint8_t* params) {
  const RowEncoder encode = row_encoder(codec);
  if (stride == 0) stride = codec.code.head_dim;
  std::int64_t bad = -1;
  const bool sound = encode(codec, rows, n, stride, codes, params, &bad);
  if (!sound) refuse_row(rows + bad * stride, bad, codec.code.head_dim);
}

void decode_rows(const RowCodec& codec, const std::uint8_t* codes, const std::uint8_t* params, std::int64_t n,
                 float* rows, std::int64_t stride) {
  validate(codec.code);
  if (stride == 0) stride = codec.code.head_dim;
  of(codec.code).decode(codec, codes, params, n, rows, stride);
}

void quantize_rows(const RowCodec& codec, const float* rows, std::int64_t n, std::int64_t stride, float* out,
                   std::int64_t out_stride) {
  constexpr std::int64_t kBatch = 16;  // rows whose codes stay in the L1 cache between the two steps
  std::uint8_t codes[kBatch * kMaxHeadDim], params[kBatch * kMaxHeadDim * 4];
  validate(codec.code);
  const std::int64_t d = codec.code.head_dim;
  if (stride == 0) stride = d;
  if (out_stride == 0) out_stride = d;
  for (std::int64_t r = 0; r < n; r += kBatch) {
    const std::int64_t batch = std::min(kBatch, n - r);
    std::int64_t bad = -1;
    const bool sound = of(codec.code).encode(codec, rows + r * stride, batch, stride, codes, params, &bad);
    if (!sound) refuse_row(rows + (r + bad) * stride, r + bad, static_cast<int>(d));
    decode_rows(codec, codes, params, batch, out + r * out_stride, out_stride);
  }
}

}  // namespace oscar
