// A KV-cache quantization method of another paper as data: for keys and for values
//   {basis} x {pre-scale} x {axis, group} x {code} x {scale rule} x {bits} x {windows}
// One engine (engine.h) runs every description; the rows of the registry (registry.h) hold them.
#pragma once

#include <cstdint>
#include <string>

#include "layout/cache_windows.h"

namespace oscar {

// Orthogonal change of basis of a row before it is coded.
enum class CacheBasis : std::uint8_t {
  kNone,
  kRandom,  // seeded random orthogonal matrix: Q of the QR factorization of a Gaussian matrix
};

enum class CacheAxis : std::uint8_t {
  kToken,    // a group is `group` channels of one token and head (0: the full head)
  kChannel,  // a group is `group` consecutive tokens of one channel, coded once the last of them has arrived
};

enum class CacheCode : std::uint8_t {
  kUniform,     // s = (max - min)/(2^b - 1), q = round((x - min)/s), xhat = q s + min; s and min in FP16
  kSymmetric4,  // q4_0 of ggml: d = (the x of largest magnitude)/-8, q = trunc(x/d + 8.5)
  kFloat8,      // E4M3 with scale 1, saturating at 448
  kLloydMax,    // FP16 norm; each coordinate becomes the nearest centroid of the Lloyd-Max quantizer of N(0, 1)
};

struct SideCode {
  CacheBasis basis = CacheBasis::kNone;
  CacheAxis axis = CacheAxis::kToken;
  int group = 0;
  CacheCode code = CacheCode::kUniform;
  int bits = 2;
  double boosted_share = 0.0;  // kLloydMax: share of channels, by largest energy, with boosted_bits
  int boosted_bits = 0;
  CacheWindows windows{0, 0, 1};  // as in the authors' code
  bool operator==(const SideCode&) const = default;
};

struct MethodSpec {
  std::string id, summary, source;
  SideCode key, value;
};

// Tokens that are coded at once: `group` on the channel axis, one otherwise.
int tile_tokens(const SideCode& side);

// Bits per element of a coded token, including parameters, for heads of d channels.
double bits_per_element(const SideCode& side, int head_dim);

// Bytes that a sequence of `tokens` tokens holds for one side of a coded layer of H heads. Codes of kUniform count with
// their parameters in full blocks of 128 tokens. The full-precision buffer (sink, recent window and open block) counts
// at its capacity, at most the sequence.
double held_bytes(const SideCode& side, int heads, int head_dim, std::int64_t tokens);

// UsageError if the head size does not fit.
void require_fit(const MethodSpec& method, int head_dim);

const MethodSpec* find_method_spec(const std::string& id);  // from the registry; null: none

}  // namespace oscar
