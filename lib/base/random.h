// Counter-based random numbers. The n-th value of a stream depends only on (seed, stream, n). Results therefore do not
// depend on threads, chunking or resumption. Mixing function: SplitMix64 (Steele, Lea, Flood 2014).
#pragma once

#include <cstdint>

namespace oscar {

constexpr std::uint64_t mix64(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

constexpr std::uint64_t random_bits(std::uint64_t seed, std::uint64_t stream, std::uint64_t n) {
  return mix64(mix64(mix64(seed) ^ stream) ^ n);
}

// Uniform in [0, 1).
constexpr double random_unit(std::uint64_t seed, std::uint64_t stream, std::uint64_t n) {
  return static_cast<double>(random_bits(seed, stream, n) >> 11) * 0x1.0p-53;
}

}  // namespace oscar
