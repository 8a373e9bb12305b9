// The codec of one row (one token of one KV head): the specification that prefill path, cache pages and CUDA kernels
// follow bit for bit. Byte-level description: docs/format-codec.md; golden vectors: sample_data/golden/.
//
// A layout (layout/row_code.h) says what is stored, and is all a reader needs. An encoder says how the stored numbers
// are chosen; readers never see it. All arithmetic is IEEE single precision, round to nearest even, each operation
// rounded on its own (no fused multiply-add, no reassociation, no flush to zero); sums of floats run in the order of
// fixed_sum() (row_math.h).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "layout/row_code.h"
#include "layout/side.h"

namespace oscar {

// The search encoder, and `blocks`, scale keys without bias (<x, xhat> = <x, x>, so that logits keep their
// temperature) and values by least squares: see Side. Feedback is search, and then steps of single codes that make the
// errors of channels cancel in the metric of the head (feedback.h), where its scales are also taken.
enum class Encoder : std::uint8_t { kMinMax, kSearch, kFeedback };

std::string to_string(Encoder encoder);          // "minmax", "search", "feedback"
Encoder parse_encoder(const std::string& name);  // InputError with the list

class FeedbackMetric;  // feedback.h

// A layout together with the choices of the writer.
struct RowCodec {
  RowCode code;
  Side side = Side::kKey;
  Encoder encoder = Encoder::kMinMax;
  float clip = 0.0f;                                        // rho of clip_row; 0: off
  std::array<float, kBands> sigma{1.0f, 1.0f, 1.0f, 1.0f};  // blocks: standard deviation of each block
  std::shared_ptr<const FeedbackMetric> metric;             // encoder feedback: of the head
};

// Batch functions; no allocation. rows: [n, d] FP32, `stride` floats apart (0: d). codes: [n, d] one code a byte;
// params: [n, param_bytes] as stored, little-endian. InputError for encoder feedback without a metric of the code.
// NumericalError names the first row with a NaN or an infinity.
void encode_rows(const RowCodec& codec, const float* rows, std::int64_t n, std::int64_t stride, std::uint8_t* codes,
                 std::uint8_t* params);
// What encode_rows() calls for one layout, without its checks, for who checks once: false and *bad_row when a row is
// not finite. stride: d or more.
using RowEncoder = bool (*)(const RowCodec& codec, const float* rows, std::int64_t n, std::int64_t stride,
                            std::uint8_t* codes, std::uint8_t* params, std::int64_t* bad_row);
RowEncoder row_encoder(const RowCodec& codec);  // InputError as encode_rows()
void decode_rows(const RowCodec& codec, const std::uint8_t* codes, const std::uint8_t* params, std::int64_t n,
                 float* rows, std::int64_t stride);
// decode(encode(row)) of each row, without the codes. `out` may be `rows`. The hot loop of clip search.
void quantize_rows(const RowCodec& codec, const float* rows, std::int64_t n, std::int64_t stride, float* out,
                   std::int64_t out_stride);

// Clip of one row over all d: threshold = ascending |x| at index min(int(rho d), d - 1), the product in single
// precision; x clamped to +-threshold. rho <= 0 or rho >= 1: off. In place. NumericalError for NaN or infinity.
void clip_row(std::span<float> row, float rho);

// Interchange bytes of a row's codes. uniform: byte b of d/4 = q[b] | q[b + d/4] << 2 | q[b + d/2] << 4 |
// q[b + 3d/4] << 6. blocks: block after block, channel i of a block at bits [i w, (i + 1) w) counted from the lowest
// bit of its first byte. codes: [d], bytes: [code_bytes].
void pack_codes(const RowCode& code, std::span<const std::uint8_t> codes, std::span<std::uint8_t> bytes);
void unpack_codes(const RowCode& code, std::span<const std::uint8_t> bytes, std::span<std::uint8_t> codes);

}  // namespace oscar
