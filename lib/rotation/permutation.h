// Column orders of the published composition R H P, and their extension to head sizes that are no power of two.
#pragma once

#include <cstdint>
#include <vector>

namespace oscar {

// The lowest `bits` bits of i in reverse order.
std::int64_t bit_reverse(std::int64_t i, int bits);

// P as indices: (X P)[:, j] = X[:, perm[j]]. perm[j] = d - 1 - bitreverse(j) for d a power of two (d = 8:
// 7 3 5 1 6 2 4 0). Otherwise the same inside each block of hadamard_block(d) channels; blocks stay where they are.
std::vector<std::int64_t> bit_reversal_permutation(std::int64_t d);

// Which eigenvector (rank 0 = smallest eigenvalue) stands in which column before the block-diagonal Hadamard.
// One block (d a power of two): the identity, as published. m = d/B blocks: ranks are dealt over the blocks like
// cards, to and fro (0 1 2 | 2 1 0 | 0 1 2 ...), so that every block gets strong and weak directions alike; each
// Hadamard block then spreads its share evenly over its own channels. Inside a block ranks ascend.
std::vector<std::int64_t> rank_distribution(std::int64_t d);

}  // namespace oscar
