// Encoder `feedback` (error-compensated rounding): takes the codes of encoder search and moves them by single steps.
// The errors of a block's channels then compensate each other in the metric that weighs them. Readers never see it.
// Byte-level definition: docs/format-codec.md.
#pragma once

#include <cstdint>
#include <vector>

#include "codec/codec.h"

namespace oscar {

// The metric of one head's errors in the basis of the cache, block by block (layout blocks: four of d/4 channels;
// uniform: its groups). Zero points give each group a free offset, so the part that an offset can absorb is projected
// out: H - h h^T / sum(h), h = H 1.
class FeedbackMetric {
 public:
  // blocks: [d, n], rows b n .. (b + 1) n are the metric of block b, [n, n] symmetric, positive semidefinite; n is
  // code.scale_channels(). Only ratios inside a block matter. InputError for a number that is not finite.
  FeedbackMetric(const float* blocks, const RowCode& code);

  int channels() const { return n_; }
  // True for a multiple of the identity: errors cannot compensate each other, so search codes the block.
  bool flat(int block) const { return flat_[static_cast<std::size_t>(block)] != 0; }
  const float* matrix(int block) const { return matrix_.data() + at(block, n_); }  // [n, n]
  const float* offset(int block) const { return offset_.data() + at(block, 1); }   // [n] h / sum(h)

 private:
  std::size_t at(int block, int width) const {
    return static_cast<std::size_t>(block) * static_cast<std::size_t>(n_) * static_cast<std::size_t>(width);
  }
  int n_;
  std::vector<float> matrix_, offset_;
  std::vector<char> flat_;
};

}  // namespace oscar
