// Unpacks codes of a few bits to FP32 and applies scales of column groups.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace oscar {

// Unpacks integers of 4 or 8 bits, lowest bits of a word first: int32 [R, C] -> FP32 [R, C 32 / bits], values 0 to
// 2^bits - 1.
at::Tensor unpacked_integers(const at::Tensor& words, std::int64_t bits);

// The number of 32-bit words for this many codes.
inline std::int64_t packed_words(std::int64_t codes, std::int64_t bits) { return (codes * bits + 31) / 32; }

// E2M1 (OCP Microscaling Formats 1.0): sign, two exponent bits, one mantissa bit; magnitudes 0, 0.5, 1, 1.5, 2, 3, 4,
// 6. Two codes per byte, low half first: uint8 [..., C] -> FP32 [..., 2 C].
at::Tensor unpacked_e2m1(const at::Tensor& bytes);

// E8M0 (the same standard): 2^(byte - 127); 255 is NaN. uint8 of any shape -> FP32.
at::Tensor e8m0_scales(const at::Tensor& bytes);

// (codes - zeros) scale, in place: codes [N, K], zeros [N, G] or one number, scale [N, G], all FP32. Column k belongs
// to group k / (K / G) or, if defined, to groups[k], int64 [K].
at::Tensor scaled_groups(const at::Tensor& codes, const at::Tensor& zeros, const at::Tensor& scale,
                         const at::Tensor& groups = {});

}  // namespace oscar
