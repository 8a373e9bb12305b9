#include "transform/permutation.h"

#include <bit>

#include "transform/hadamard.h"

namespace oscar {

std::int64_t bit_reverse(std::int64_t i, int bits) {
  std::int64_t reversed = 0;
  for (int b = 0; b < bits; ++b) reversed |= ((i >> b) & 1) << (bits - 1 - b);
  return reversed;
}

std::vector<std::int64_t> bit_reversal_permutation(std::int64_t d) {
  const std::int64_t block = hadamard_block(d);
  const int bits = std::countr_zero(static_cast<std::uint64_t>(block));
  std::vector<std::int64_t> perm(static_cast<std::size_t>(d));
  for (std::int64_t j = 0; j < d; ++j) {
    const std::int64_t start = j / block * block;
    perm[static_cast<std::size_t>(j)] = start + block - 1 - bit_reverse(j - start, bits);
  }
  return perm;
}

std::vector<std::int64_t> rank_distribution(std::int64_t d) {
  const std::int64_t block = hadamard_block(d);
  const std::int64_t blocks = d / block;
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(d));
  for (std::int64_t b = 0; b < blocks; ++b) {
    for (std::int64_t slot = 0; slot < block; ++slot) {
      const std::int64_t hand = slot % 2 == 0 ? b : blocks - 1 - b;
      ranks[static_cast<std::size_t>(b * block + slot)] = slot * blocks + hand;
    }
  }
  return ranks;
}

}  // namespace oscar
