// The uniform layout: encoders and decoder of one row. Internal to lib/codec.
#pragma once

#include <cstdint>

#include "codec/codec.h"

namespace oscar::uniform {

// n rows; returns false and sets *bad_row if a row is not finite. codes: [n, d]; params: [n, groups, 2] 16-bit s and z.
bool encode_rows(const RowCodec& codec, const float* rows, std::int64_t n, std::int64_t stride, std::uint8_t* codes,
                 std::uint8_t* params, std::int64_t* bad_row);
void decode_rows(const RowCodec& codec, const std::uint8_t* codes, const std::uint8_t* params, std::int64_t n,
                 float* rows, std::int64_t stride);

}  // namespace oscar::uniform
