// Column orders of the published composition R H P, and their extension to head sizes that are not a power of two.
#pragma once

#include <cstdint>
#include <vector>

namespace oscar {

// The lowest `bits` bits of i in reverse order.
std::int64_t bit_reverse(std::int64_t i, int bits);

// P as indices: (X P)[:, j] = X[:, perm[j]]. If d is a power of two: perm[j] = d - 1 - bitreverse(j) (d = 8: 7 3 5 1 6
// 2 4 0). Otherwise the same inside each block of hadamard_block(d) channels; blocks keep their positions.
std::vector<std::int64_t> bit_reversal_permutation(std::int64_t d);

// The eigenvector (rank 0 = smallest eigenvalue) in each column before the block-diagonal Hadamard. One block (d a
// power of two): the identity, as published. m = d/B blocks: ranks are dealt back and forth over the blocks (0 1 2 | 2
// 1 0 | 0 1 2 ...), so that every block gets strong and weak directions. Each Hadamard block then spreads its share
// evenly over its own channels. Inside a block ranks ascend.
std::vector<std::int64_t> rank_distribution(std::int64_t d);

}  // namespace oscar
