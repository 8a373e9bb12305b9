// What the fast kernels (kernels/decode/decode_attention.h) support, in one place for the commands, the exports and
// python/oscar_kv/format/limits.py.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "layout/row_code.h"

namespace oscar {

inline constexpr std::array<std::int64_t, 3> kEngineHeadSizes = {64, 128, 256};
inline constexpr std::int64_t kEngineMostGroup = 16;     // query heads per KV head
inline constexpr std::int64_t kEngineMostWindow = 2048;  // tokens of sink and ring, in complete pages
inline constexpr std::int64_t kEngineRingSlack = 15;     // slots beyond the ring's tokens that the last tile may read

// Rows of the first have one FP16 scale and zero for each head, no groups. Keys centered before RoPE are of the second.
inline constexpr Layout kHeadScaleLayout = Layout::kUniform, kRotatedMeanLayout = Layout::kBlocks;

// Codes that the kernels do not read, and what to fit in their place. Empty: they read them.
struct UnreadCodes {
  std::string what, fix;
};
std::optional<UnreadCodes> unread_codes(const RowCode& key, const RowCode& value, bool rotated_mean);

}  // namespace oscar
