// Limits of the fast decode kernel (kernels/decode/decode_attention.h), in one place for the commands, the exports and
// the limits.py files of oscar_kv.
#pragma once

#include <array>
#include <cstdint>

namespace oscar {

inline constexpr std::array<std::int64_t, 3> kEngineHeadSizes = {64, 128, 256};
inline constexpr std::int64_t kEngineMostGroup = 16;     // query heads per KV head
inline constexpr std::int64_t kEngineMostWindow = 2048;  // tokens of sink and ring, in complete pages

}  // namespace oscar
