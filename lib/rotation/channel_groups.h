// Orders of channels, consecutive ones of which form the groups that codebooks code.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace oscar {

// Equal volume: channels from the largest variance down, each to the group that is not full and has the least sum of
// logarithms so far. variances: [d] FP64; d a multiple of `size`. [d] channels.
std::vector<std::int64_t> dealt_channels(const at::Tensor& variances, std::int64_t size);

// Groups of RoPE pairs (channels i and i + d/2) whose joint volume is small: pairs are matched with pairs, these
// with each other and so on, each time so that the sum of det(covariance + eps I)^(1/channels) is least, eps 1e-4 of
// the mean variance. covariance: [d, d] FP64; size: 2, 4, 8 and so on, d a multiple of it. [d] channels.
std::vector<std::int64_t> matched_channels(const at::Tensor& covariance, std::int64_t size);

// A perfect matching of n nodes (even) of small total cost, and a lower bound of that of any.
struct PairMatching {
  std::vector<std::pair<std::int64_t, std::int64_t>> pairs;  // each with its lower node first, ascending
  double cost = 0.0, bound = 0.0;
};

// cost: [n, n] FP64, symmetric; the diagonal is not read.
PairMatching match_pairs(const at::Tensor& cost);

}  // namespace oscar
