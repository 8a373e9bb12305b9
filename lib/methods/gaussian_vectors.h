// Universal vector quantisers of eight channels (NSNQuant, arXiv 2505.18231): 256 vectors that suit N(0, I) with one
// bit for each channel, or with two 256 vectors of magnitudes and a bit for each sign; the same for every model, layer
// and head. Rows have to look like Gaussian ones, for example after a Hadamard transform.
#pragma once

#include <cstdint>
#include <vector>

namespace oscar {

inline constexpr int kVectorChannels = 8, kVectors = 256;

// [256, 8], FP16 values: k-means (Lloyd) over 16,384 seeded samples of N(0, I), of their magnitudes for 2 bits, then
// each vector's channels rounded to 16 levels between its least and its largest one. Made at the first call, in about a
// second. std::invalid_argument for other bits than 1 and 2.
const std::vector<float>& gaussian_vectors(int bits);

// Replaces a row of n values (a multiple of 8) by scale v: v the nearest vectors of the row over its root mean square,
// scale = <x, x> / <x, v> in FP16, so that <x, xhat> = <x, x>. With 2 bits the vectors are the nearest ones of the
// row's magnitudes, with its signs.
void gaussian_vector_code(float* x, std::int64_t n, int bits);

// Share of the energy of decoded Gaussian rows that is error, 1 - <x, xhat>^2 / (|x|^2 |xhat|^2), measured at the first
// call over seeded samples that the vectors were not made of.
double gaussian_vector_error(int bits);

// Of a tile of tokens, before such a code: what makes rows alike, as it is stored.
//   norm_t = |x_t| / sqrt(d), 4 bits for each token, scale and offset for the tile
//   mean_c = mean over tokens of x_tc / norm_t, 4 bits for each channel, scale and offset for 32 channels
// Replaces x by x_t / norm_t - mean, rows whose norm rounds to 0 by -mean. tile: [tokens, d], `stride` floats from
// token to token; norm: [tokens], mean: [d].
void normalise_and_shift(float* tile, std::int64_t tokens, std::int64_t d, std::int64_t stride, float* norm,
                         float* mean);

}  // namespace oscar
