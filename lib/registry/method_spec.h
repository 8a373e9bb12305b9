// A KV-cache quantization method of another paper as data: for keys and for values
//   {basis} x {pre-scale} x {axis, group} x {code} x {scale rule} x {bits} x {windows}
// One engine (engine.h) runs every description; the rows of the registry (registry.h) hold them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layout/cache_windows.h"

namespace oscar {

// Orthogonal change of basis of a row before it is coded.
enum class CacheBasis : std::uint8_t {
  kNone,
  kHadamard,  // Sylvester-Hadamard transform of the head
  kRandom,    // seeded random orthogonal matrix: Q of the QR factorization of a Gaussian matrix
};

enum class CacheAxis : std::uint8_t {
  kToken,    // a group is `group` channels of one token and head (0: the full head)
  kChannel,  // a group is `group` consecutive tokens of one channel, coded once the last of them has arrived
};

enum class CacheCode : std::uint8_t {
  kUniform,      // s = (max - min)/(2^b - 1), q = round((x - min)/s), xhat = q s + min; s and min in FP16
  kIntegerZero,  // z = round(-min/s) an integer, q = clamp(round(x/s) + z), xhat = s (q - z); min and max are first
                 // multiplied by `clip`
  kSymmetric4,   // q4_0 of ggml: d = (the x of largest magnitude)/-8, q = trunc(x/d + 8.5)
  kFloat8,       // E4M3 with scale 1, saturating at 448
  kLloydMax,     // FP16 norm; each coordinate becomes the nearest centroid of the Lloyd-Max quantizer of N(0, 1)
};

struct SideCode {
  CacheBasis basis = CacheBasis::kNone;
  bool token_norm = false;  // divide each token by its norm over all heads, and store the FP32 norm (OScaR)
  CacheAxis axis = CacheAxis::kToken;
  int group = 0;
  CacheCode code = CacheCode::kUniform;
  int bits = 2;
  double clip = 1.0;           // kIntegerZero
  double boosted_share = 0.0;  // kLloydMax: share of channels, by largest energy, with boosted_bits
  int boosted_bits = 0;
  CacheWindows windows{0, 0, 1};  // as in the authors' code
};

struct MethodSpec {
  std::string id, summary, source;
  SideCode key, value;
};

// Tokens that are coded at once: `group` on the channel axis, one otherwise.
int tile_tokens(const SideCode& side);

// kHadamard: order of the transformed blocks of a head, the largest power of two that divides head_dim.
std::int64_t hadamard_order_of(std::int64_t head_dim);

// True if the paged cache has pages for the method (cache/kivi_pages.h): 2 or 4 bits with scale and offset, on either
// axis, without rotation or with a Hadamard transform of the head.
bool has_pages(const MethodSpec& method);

inline constexpr int kKiviPageTokens = 128;  // tokens of a page of the paged cache

// Bits per element of a coded token, including parameters, for H heads of d channels.
double bits_per_element(const SideCode& side, int heads, int head_dim);

// Bytes that a sequence of `tokens` tokens holds for one side of a coded layer. Codes with their parameters count in
// full pages if the paged cache has pages for them (paged). The full-precision buffer (sink, recent window and open
// block) counts at its capacity, at most the sequence.
double held_bytes(const SideCode& side, bool paged, int heads, int head_dim, std::int64_t tokens);

// UsageError if the head size does not fit.
void require_fit(const MethodSpec& method, int head_dim);

const MethodSpec* find_method_spec(const std::string& id);  // from the registry; null: none

}  // namespace oscar
