// What the fast kernels (kernels/decode/decode_attention.h) support, in one place for the commands, the exports and
// python/oscar_kv/format/limits.py.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "layout/row_code.h"

namespace oscar {

struct HeadLimit {
  std::int64_t head_dim, most_group;  // query heads per KV head
};
inline constexpr std::array<HeadLimit, 4> kEngineHeads = {{{64, 16}, {128, 16}, {256, 16}, {512, 8}}};
inline constexpr std::int64_t kMostHeadScaleHead = 256;  // wider heads have no kernels for kHeadScaleLayout
inline constexpr std::int64_t kEngineMostWindow = 2048;  // tokens of sink and ring, in complete pages
inline constexpr std::int64_t kEngineRingSlack = 15;     // slots beyond the ring's tokens that the last tile may read

std::string engine_head_sizes(const char* last);        // "64, 128, 256 and 512"; last: " and "
std::int64_t engine_most_group(std::int64_t head_dim);  // 0: no kernel

// Rows of the first have one FP16 scale and zero for each head, no groups. Keys centered before RoPE are of the second.
inline constexpr Layout kHeadScaleLayout = Layout::kUniform, kRotatedMeanLayout = Layout::kBlocks;

// Codes that the kernels do not read, and what to fit in their place. Empty: they read them.
struct UnreadCodes {
  std::string what, fix;
};
std::optional<UnreadCodes> unread_codes(const RowCode& key, const RowCode& value, bool rotated_mean);

}  // namespace oscar
