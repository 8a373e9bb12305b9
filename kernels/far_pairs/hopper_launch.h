// The kernel of far_pairs() for Hopper. far_pairs() has checked its arguments. Same bits, less time.
#pragma once

#include "kernels/far_pairs/far_pair_sums.h"

namespace oscar::kernels {

cudaError_t far_pairs_hopper(const FarPairsParams& params, cudaStream_t stream);

}  // namespace oscar::kernels
