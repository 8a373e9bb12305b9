// Calls the attention kernels that read caches of every layout, on LibTorch's tensors and current stream.
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

class AttentionLauncher {
 public:
  explicit AttentionLauncher(at::Device device) : device_(device) {}
  virtual ~AttentionLauncher() = default;
  // The newest token of each sequence attends. p: pointers and sides; `input` and `sequences` give the rest.
  virtual void launch(kernels::FallbackAttentionParams& p, const AttentionInput& input,
                      const std::vector<kernels::FallbackSequence>& sequences) = 0;

 protected:
  at::Tensor upload(const void* bytes, std::size_t count) const;
  void* workspace(std::size_t bytes);  // at least `bytes`, kept between calls

 private:
  at::Device device_;
  at::Tensor workspace_;
};

// kernels/fallback/fallback_attention.h: every cache that the CPU supports.
class FallbackLauncher : public AttentionLauncher {
 public:
  using AttentionLauncher::AttentionLauncher;
  void launch(kernels::FallbackAttentionParams& p, const AttentionInput& input,
              const std::vector<kernels::FallbackSequence>& sequences) override;
};

// kernels/kivi/kivi_attention.h: the pages of KIVI and OScaR. Needs queries and outputs of coded tokens; does not read
// or write shifts, positions and sums of weights.
class KiviLauncher : public AttentionLauncher {
 public:
  // sink: number of BF16 tokens at the start, equal for keys and values.
  KiviLauncher(at::Device device, std::int64_t sink) : AttentionLauncher(device), sink_(sink) {}
  void launch(kernels::FallbackAttentionParams& p, const AttentionInput& input,
              const std::vector<kernels::FallbackSequence>& sequences) override;

 private:
  std::int64_t sink_;
};

}  // namespace oscar
