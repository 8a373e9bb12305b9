// Learned codebooks of one side of one layer, and the coding of rows with them. What is common to all methods of
// registry/codebook_spec.h, apart from RoPE, which the caller takes back and applies.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "registry/codebook_spec.h"

namespace oscar {

inline constexpr std::int64_t kMostCentroids = 4096;

// S = 1 (shared by the KV heads) or Hkv; G = d / c groups.
struct Codebook {
  bool before_rope = false;  // keys: rows are coded without their rotary embedding
  RowScale scale = RowScale::kNone;
  CentroidType type = CentroidType::kFloat16;
  at::Tensor first;   // [S, G, C, c] F32, numbers of `type`
  at::Tensor second;  // undefined, or [S, G, C2, c]: of what the first leaves
  // Keys: undefined, or [S, G, C] F32 (16-bit floats): mean squared error of a channel of the calibration rows in the
  // cell of each centroid of `first`, after both stages, in units of the squared scale.
  at::Tensor errors;
  // With `errors`: [S, G, c] F32 (16-bit floats), how they are spread over the channels of a group; mean 1.
  at::Tensor profile;

  std::int64_t channels() const { return first.size(3); }
  double bits_per_element(std::int64_t heads) const;  // of a coded row, scale included
  std::uint64_t bytes() const;                        // of the centroids, as their type stores them
  std::uint64_t error_bytes() const;                  // of errors and profile, which logit correction reads
};

const char* to_string(RowScale scale);     // "none", "token", "head"
const char* to_string(CentroidType type);  // "float16", "float8_e5m2"

// x rounded to numbers of the type. NumericalError where that is not finite.
at::Tensor as_centroids(const at::Tensor& x, CentroidType type);
bool are_centroids(const at::Tensor& x, CentroidType type);  // rounding changes nothing

// The nearest centroid of each point, by squared distance; the first of equally near ones up to the rounding of FP32.
// points [B, N, c], centroids [B, C, c] F32 on one device -> [B, N] int64. On the CPU kPointsAtOnce points, counted
// from the first, are one product: pieces of so many give what the whole gives.
inline constexpr std::int64_t kPointsAtOnce = 256;
at::Tensor nearest_centroids(const at::Tensor& points, const at::Tensor& centroids);

// The groups of rows as points, and back: rows [H, N, d] <-> points [G, N H, c] (shared; the heads of a row one after
// another) or [H G, N, c].
at::Tensor points_of(const at::Tensor& rows, std::int64_t groups, bool shared);
at::Tensor rows_of(const at::Tensor& points, at::IntArrayRef row_shape, bool shared);

// points [B, N, c] -> the centroid nearest to each. codebook [S, G, C, c], S G = B. index: null, or filled with [B, N].
at::Tensor nearest_points(const at::Tensor& points, const at::Tensor& codebook, at::Tensor* index = nullptr);

// Root mean squares of rows [H, N, d], as 16-bit floats hold them: [H or 1, N, 1] F32; 1 for rows of zeros.
at::Tensor row_scales(const at::Tensor& rows, RowScale scale);

// Rows [H, N, d] F32 in the basis of the codebook (transform applied, scale not) as a reader gets them back. errors:
// null, or filled with [H, N, d], the squared error that the codebook's `errors` and `profile` tell of each channel.
at::Tensor decode_encoded(const Codebook& codebook, const at::Tensor& rows, at::Tensor* errors = nullptr);

}  // namespace oscar
