#include "methods/gaussian_vectors.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numbers>
#include <stdexcept>

#include "base/random.h"
#include "codec/row_math.h"
#include "layout/float16.h"
#include "methods/group_codes.h"
#include "registry/method_spec.h"

namespace oscar {
namespace {

constexpr std::int64_t kSamples = 16384;
constexpr std::uint64_t kSeed = 42;
constexpr int kMostRounds = 100;
constexpr double kLeastGain = 1e-5;  // of the squared error, relative

// Vectors as the search reads them: channels apart, and half of each squared norm.
struct SearchTable {
  float channel[kVectorChannels][kVectors];
  float half_norm[kVectors];

  explicit SearchTable(const std::vector<float>& vectors) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      half_norm[v] = 0.0f;
      for (std::size_t c = 0; c < kVectorChannels; ++c) {
        const float x = vectors[v * kVectorChannels + c];
        channel[c][v] = x, half_norm[v] += 0.5f * x * x;
      }
    }
  }
};

// argmin |x - v|^2 = argmax <x, v> - |v|^2 / 2; the first of equals.
OSCAR_VECTOR_CLONES int nearest(const SearchTable& table, const float* x) {
  float score[kVectors];
  for (int v = 0; v < kVectors; ++v) score[v] = -table.half_norm[v];
  for (int c = 0; c < kVectorChannels; ++c) {
    for (int v = 0; v < kVectors; ++v) score[v] += x[c] * table.channel[c][v];
  }
  float best = score[0];
  for (int v = 1; v < kVectors; ++v) best = score[v] > best ? score[v] : best;
  int index = 0;
  while (score[index] != best) ++index;
  return index;
}

// Of N(0, I); magnitudes alone for the code with a bit for each sign.
std::vector<float> samples(bool magnitudes, std::uint64_t seed = kSeed) {
  std::vector<float> x(static_cast<std::size_t>(kSamples * kVectorChannels));
  for (std::size_t i = 0; i < x.size(); ++i) {  // Box-Muller
    const double u = 1.0 - random_unit(seed, 1, i), v = random_unit(seed, 2, i);
    x[i] = static_cast<float>(std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v));
    if (magnitudes) x[i] = std::abs(x[i]);
  }
  return x;
}

// One round of Lloyd's iteration; returns the squared error before it. A vector that no sample is nearest to stays.
double lloyd_round(const std::vector<float>& x, std::vector<float>& vectors) {
  const SearchTable table(vectors);
  std::vector<double> sum(vectors.size(), 0.0);
  std::vector<std::int64_t> count(kVectors, 0);
  double error = 0;
  for (std::size_t i = 0; i < x.size(); i += kVectorChannels) {
    const auto v = static_cast<std::size_t>(nearest(table, x.data() + i));
    ++count[v];
    for (std::size_t c = 0; c < kVectorChannels; ++c) {
      const double difference = double{x[i + c]} - vectors[v * kVectorChannels + c];
      error += difference * difference;
      sum[v * kVectorChannels + c] += x[i + c];
    }
  }
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    const std::int64_t n = count[i / kVectorChannels];
    if (n > 0) vectors[i] = static_cast<float>(sum[i] / static_cast<double>(n));
  }
  return error;
}

std::vector<float> make_vectors(bool magnitudes) {
  const std::vector<float> x = samples(magnitudes);
  std::vector<float> vectors(x.begin(), x.begin() + kVectors * kVectorChannels);
  double error = INFINITY;
  for (int round = 0; round < kMostRounds; ++round) {
    const double next = lloyd_round(x, vectors);
    if (error - next <= kLeastGain * next) break;
    error = next;
  }
  for (std::size_t v = 0; v < vectors.size(); v += kVectorChannels) {
    const auto [low, high] = std::minmax_element(vectors.begin() + static_cast<std::int64_t>(v),
                                                 vectors.begin() + static_cast<std::int64_t>(v) + kVectorChannels);
    const float least = *low, step = (*high - *low) / 15.0f;
    for (std::size_t c = v; c < v + kVectorChannels; ++c) {
      vectors[c] = round_to_float16(std::nearbyint((vectors[c] - least) / step) * step + least);
    }
  }
  return vectors;
}

const SearchTable& search_table(int bits) {
  static const SearchTable signed_table(gaussian_vectors(1));
  if (bits == 1) return signed_table;
  static const SearchTable magnitude_table(gaussian_vectors(2));
  return magnitude_table;
}

double dot(const float* x, const float* y, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += double{x[i]} * y[i];
  return sum;
}

}  // namespace

const std::vector<float>& gaussian_vectors(int bits) {
  if (bits == 2) {
    static const std::vector<float> magnitudes = make_vectors(true);
    return magnitudes;
  }
  if (bits != 1) throw std::invalid_argument("Gaussian vectors take 1 or 2 bits");
  static const std::vector<float> vectors = make_vectors(false);
  return vectors;
}

void gaussian_vector_code(float* x, std::int64_t n, int bits) {
  const double energy = dot(x, x, n);
  const float up = static_cast<float>(std::sqrt(static_cast<double>(n) / energy));
  if (!(energy > 0) || !std::isfinite(up)) return std::fill_n(x, n, 0.0f), void();
  const std::vector<float>& vectors = gaussian_vectors(bits);
  const SearchTable& table = search_table(bits);
  std::vector<float> coded(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; i += kVectorChannels) {
    float y[kVectorChannels];
    for (int c = 0; c < kVectorChannels; ++c) y[c] = bits == 2 ? std::abs(x[i + c] * up) : x[i + c] * up;
    std::copy_n(vectors.data() + nearest(table, y) * kVectorChannels, kVectorChannels, coded.data() + i);
    if (bits == 1) continue;
    for (std::int64_t c = i; c < i + kVectorChannels; ++c) {
      const auto at = static_cast<std::size_t>(c);
      coded[at] = std::copysign(coded[at], x[c]);
    }
  }
  // The nearest vectors of a row point where it points; a sum of products that is not positive has no scale.
  const double product = dot(x, coded.data(), n);
  const float scale = group_codes::stored_half(product > 0 ? static_cast<float>(energy / product) : 0.0f);
  for (std::int64_t i = 0; i < n; ++i) x[i] = coded[static_cast<std::size_t>(i)] * scale;
}

void normalise_and_shift(float* tile, std::int64_t tokens, std::int64_t d, std::int64_t stride, float* norm,
                         float* mean) {
  for (std::int64_t t = 0; t < tokens; ++t) {
    const float* row = tile + t * stride;
    norm[t] = static_cast<float>(std::sqrt(dot(row, row, d) / static_cast<double>(d)));
  }
  group_codes::uniform(norm, tokens, kShiftBits);
  std::vector<double> sum(static_cast<std::size_t>(d), 0.0);
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t c = 0; c < d; ++c) {
      float& x = tile[t * stride + c];
      x = norm[t] > 0 ? x / norm[t] : 0.0f;
      sum[static_cast<std::size_t>(c)] += x;
    }
  }
  for (std::int64_t c = 0; c < d; ++c) {
    mean[c] = static_cast<float>(sum[static_cast<std::size_t>(c)] / static_cast<double>(tokens));
  }
  for (std::int64_t c = 0; c < d; c += kShiftGroup) {
    group_codes::uniform(mean + c, std::min<std::int64_t>(kShiftGroup, d - c), kShiftBits);
  }
  for (std::int64_t t = 0; t < tokens; ++t) {
    for (std::int64_t c = 0; c < d; ++c) tile[t * stride + c] -= mean[c];
  }
}

}  // namespace oscar
