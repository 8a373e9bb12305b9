// A method with learned vector codebooks as data. All of them are one code, whose steps may be left out:
//   row -> before RoPE -> times a matrix -> over a 16-bit scale -> groups of c channels -> nearest centroid (-> nearest
//   centroid of what is left)
// The matrix may reorder channels. oscar-fit finds matrices and codebooks (rotation/codebook_fit.h), a bundle carries
// them, and oscar-verify codes and decodes rows (methods/codebook_engine.h).
#pragma once

#include <cstdint>

#include "layout/cache_windows.h"

namespace oscar {

// What the rows of a side are multiplied by before they are coded.
enum class CodebookBasis : std::uint8_t {
  kNone,
  kRotation,  // the rotation of method oscar
  kSmoothed,  // keys before RoPE: channels times what queries make of them, RoPE pairs of like channels together (TaSQ)
  kJoint,     // root of the queries' moment times the eigenvectors of keys under it, dealt out to groups (NOVA-KV)
};

// One 16-bit root mean square that a row is divided by.
enum class RowScale : std::uint8_t {
  kNone,
  kToken,  // of all heads of a token together
  kHead,   // of each head of a token
};

enum class CentroidType : std::uint8_t { kFloat16, kFloat8E5M2 };

struct CodebookSide {
  int channels = 0;   // of a group; 0: no codebook, the side has the code, rotation and clip of method oscar
  int bits = 2;       // of that code; 1: two levels (codec/two_levels.h)
  int centroids = 0;  // of each group's codebook, a power of two
  int second = 0;     // of a second codebook for what the first leaves; 0: none
  bool before_rope = false;
  bool shared = false;    // one codebook for all KV heads of a layer; else one for each
  bool weighted = false;  // centroids found with squared gradients as weights, or the metric's diagonal
  CodebookBasis basis = CodebookBasis::kNone;
  RowScale scale = RowScale::kNone;
  CentroidType type = CentroidType::kFloat16;

  bool coded() const { return channels > 0; }
};

struct CodebookSpec {
  CodebookSide key, value;
  CacheWindows windows;  // as the authors have them

  bool weighted() const { return key.weighted || value.weighted; }
};

// Bits of one element, scale included: log2(centroids) of each stage for each group of `channels`, 16 for the scale. Of
// a coded side with these numbers; heads and channels of a layer.
double codebook_bits(int channels, std::int64_t centroids, std::int64_t second, RowScale scale, std::int64_t heads,
                     std::int64_t head_dim);
// Mean of keys and values of a method; sides without a codebook have `bits` and one 32-bit pair a head.
double bits_per_element(const CodebookSpec& spec, std::int64_t heads, std::int64_t head_dim);

}  // namespace oscar
