// The codec of one row (one token of one KV head). Prefill path, cache pages and CUDA kernels follow this specification
// bit for bit. Byte-level description: docs/format-codec.md; golden vectors: sample_data/golden/.
//
// A layout (layout/row_code.h) defines what is stored, and a reader needs nothing else. An encoder chooses the stored
// numbers; readers never see it. All arithmetic is IEEE single precision, round to nearest even, each operation rounded
// separately (no fused multiply-add, no reassociation, no flush to zero). Sums of floats run in the order of
// fixed_sum() (row_math.h).
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "layout/row_code.h"
#include "layout/side.h"

namespace oscar {

// The search encoder, and the layout `blocks`, scale keys without bias (<x, xhat> = <x, x>, so logits keep their
// temperature) and values by least squares: see Side.
enum class Encoder : std::uint8_t { kMinMax, kSearch };

std::string to_string(Encoder encoder);          // "minmax", "search"
Encoder parse_encoder(const std::string& name);  // InputError with the list

// A layout with the writer's choices.
struct RowCodec {
  RowCode code;
  Side side = Side::kKey;
  Encoder encoder = Encoder::kMinMax;
  float clip = 0.0f;                                        // rho of row_math::load_clipped(); 0: off
  std::array<float, kBands> sigma{1.0f, 1.0f, 1.0f, 1.0f};  // blocks: standard deviation of each block
};

// Batch functions without allocation. rows: [n, d] FP32, `stride` floats apart (0: d). codes: [n, d], one code per
// byte; params: [n, param_bytes] as stored, little-endian. InputError for a code that
// does not exist. NumericalError names the first row with a NaN or an infinity.
void encode_rows(const RowCodec& codec, const float* rows, std::int64_t n, std::int64_t stride, std::uint8_t* codes,
                 std::uint8_t* params);
// The function that encode_rows() calls for one layout, without its checks, for callers that validate up front. Returns
// false and sets *bad_row if a row is not finite. stride: d or more.
using RowEncoder = bool (*)(const RowCodec& codec, const float* rows, std::int64_t n, std::int64_t stride,
                            std::uint8_t* codes, std::uint8_t* params, std::int64_t* bad_row);
RowEncoder row_encoder(const RowCodec& codec);  // InputError as encode_rows()
void decode_rows(const RowCodec& codec, const std::uint8_t* codes, const std::uint8_t* params, std::int64_t n,
                 float* rows, std::int64_t stride);
// decode(encode(row)) of each row, without storing the codes. `out` may be `rows`. The hot loop of clip search.
void quantize_rows(const RowCodec& codec, const float* rows, std::int64_t n, std::int64_t stride, float* out,
                   std::int64_t out_stride);

}  // namespace oscar
