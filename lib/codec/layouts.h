// Encoder and decoder of one row in each layout. Internal to lib/codec.
#pragma once

#include <cstdint>

#include "codec/codec.h"

namespace oscar::blocks {

// n rows; returns false and sets *bad_row if a row is not finite. codes: [n, d] (0 in blocks of width 0); params: [n,
// blocks with w > 0] scale bytes, two's complement.
bool encode_rows(const RowCodec& codec, const float* rows, std::int64_t n, std::int64_t stride, std::uint8_t* codes,
                 std::uint8_t* params, std::int64_t* bad_row);
void decode_rows(const RowCodec& codec, const std::uint8_t* codes, const std::uint8_t* params, std::int64_t n,
                 float* rows, std::int64_t stride);

// The scale byte nearest to a ratio scale / sigma on the grid 2^(e/32), and the value of a scale byte.
std::int8_t scale_byte(float ratio);
float scale_value(std::int8_t e, float sigma);

}  // namespace oscar::blocks

namespace oscar::uniform {

// n rows; returns false and sets *bad_row if a row is not finite. codes: [n, d]; params: [n, groups, 2] 16-bit s and z.
bool encode_rows(const RowCodec& codec, const float* rows, std::int64_t n, std::int64_t stride, std::uint8_t* codes,
                 std::uint8_t* params, std::int64_t* bad_row);
void decode_rows(const RowCodec& codec, const std::uint8_t* codes, const std::uint8_t* params, std::int64_t n,
                 float* rows, std::int64_t stride);

}  // namespace oscar::uniform
