// Causal attention on the CPU in tiles that stay in a core's cache, without LibTorch. For a block of queries of one KV
// head, it processes keys tile by tile with a running softmax (Dao et al. 2022, arXiv:2205.14135). Rows may have two
// versions, coded and plain, as in attention/prefill_core.h. Each query has its own position and visible keys, so a
// block may hold any ascending positions.
#pragma once

#include <cstdint>

namespace oscar {

inline constexpr std::int64_t kStrip = 16;  // floats in a strip of packed rows

// Packs rows of one KV head, [T, d]. Keys: strips of 16 tokens, [ceil(T / 16), d, 16], zeros after the last token.
// Values: strips of 16 channels, [ceil(d / 16), T, 16], zeros after the last channel.
void pack_keys(const float* rows, std::int64_t tokens, std::int64_t d, float* packed);
void pack_values(const float* rows, std::int64_t tokens, std::int64_t d, float* packed);
inline std::int64_t strips_of(std::int64_t n) { return (n + kStrip - 1) / kStrip; }

// What one query sees: keys [first, position], and coded versions of those in [sink, coded_end).
struct SeenKeys {
  std::int64_t position, first, coded_end;  // coded_end: sink if nothing is coded
};

// One KV head. Packed rows; `coded` null: every query reads this side plain.
struct FusedHead {
  std::int64_t tokens = 0, key_d = 0, sink = 0;
  std::int64_t gqa_group = 1;
  const float *keys = nullptr, *coded_keys = nullptr;
  const float *values = nullptr, *coded_values = nullptr;
  std::int64_t value_strips = 0;        // of plain values
  std::int64_t coded_value_strips = 0;  // of coded ones
  // The channels of coded values come after the channels of plain values in the output, instead of being added to them.
  bool separate = false;
  std::int64_t output_strips() const { return separate ? value_strips + coded_value_strips : value_strips; }
};

// queries: [count, gqa_group, key_d], `stride` floats from query to query, already multiplied by the layer's scale;
// seen: [count], ascending positions. out: [count, gqa_group, 16 output_strips()], contiguous.
void fused_attention(const FusedHead& head, const float* queries, std::int64_t stride, const SeenKeys* seen,
                     std::int64_t count, float* out);

// Number of queries whose block has about 96 rows.
std::int64_t fused_block(std::int64_t gqa_group);

}  // namespace oscar
