// Codes of a few bits as numbers in FP32, and groups of columns that share a scale.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace oscar {

// Integers of 4 or 8 bits, the lowest bits of a word first: int32 [R, C] -> FP32 [R, C 32 / bits], values of 0 to
// 2^bits - 1.
at::Tensor unpacked_integers(const at::Tensor& words, std::int64_t bits);

// Words of 32 bits that hold so many codes.
inline std::int64_t packed_words(std::int64_t codes, std::int64_t bits) { return (codes * bits + 31) / 32; }

// E2M1 (OCP Microscaling Formats 1.0): sign, two bits of exponent, one of mantissa; 0, 0.5, 1, 1.5, 2, 3, 4, 6. Two in
// a byte, the low half first: uint8 [..., C] -> FP32 [..., 2 C].
at::Tensor unpacked_e2m1(const at::Tensor& bytes);

// E8M0 (the same standard): 2^(byte - 127); 255 is NaN. uint8 of any shape -> FP32.
at::Tensor e8m0_scales(const at::Tensor& bytes);

// (codes - zeros) scale, in place: codes [N, K], zeros [N, G] or one number, scale [N, G], all FP32. Column k belongs
// to group k / (K / G), or to groups[k], int64 [K], where that is defined.
at::Tensor scaled_groups(const at::Tensor& codes, const at::Tensor& zeros, const at::Tensor& scale,
                         const at::Tensor& groups = {});

}  // namespace oscar
