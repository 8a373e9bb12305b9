// Calls the attention kernel that reads caches of every layout, on LibTorch's tensors and current stream.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "cache/cache_pages.h"
#include "kernels/fallback/fallback_attention.h"
#include "layout/side.h"
#include "model/attention.h"

namespace oscar {

// Keys or values of a layer. pages, sigma: device pointers.
kernels::FallbackSide general_side(const CachePages& format, Side side, const std::uint8_t* pages, const float* sigma);

// kernels/fallback/fallback_attention.h
class FallbackLauncher {
 public:
  explicit FallbackLauncher(at::Device device) : device_(device) {}
  // The newest token of each sequence attends. p: pointers and sides; `input` and `sequences` give the rest.
  void launch(kernels::FallbackAttentionParams& p, const AttentionInput& input,
              const std::vector<kernels::FallbackSequence>& sequences);

 private:
  at::Device device_;
  at::Tensor workspace_;  // kept between calls
};

}  // namespace oscar
