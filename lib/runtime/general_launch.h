// Calls of the general attention kernel (kernels/general_attention.h) on LibTorch's tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "codec/side.h"
#include "kernels/general_attention.h"
#include "model/attention.h"
#include "runtime/described_pages.h"

namespace oscar {

// Keys or values of a layer. Pointers are of the device; page_bytes: of all heads, norms included.
kernels::GeneralSide general_side(const PageLayout& page, Side side, std::int64_t kv_heads, const std::uint8_t* pages,
                                  const float* sigma);
kernels::GeneralSide general_side(const DescribedPages& layout, bool norms, const std::uint8_t* pages,
                                  std::int64_t page_bytes);

class GeneralLauncher {
 public:
  explicit GeneralLauncher(at::Device device) : device_(device) {}
  // The newest token of each sequence attends. p: pointers and sides; the rest comes from `input` and `sequences`.
  void launch(kernels::GeneralAttentionParams& p, const AttentionInput& input,
              const std::vector<kernels::GeneralSequence>& sequences);

 private:
  at::Device device_;
  at::Tensor workspace_;
};

}  // namespace oscar
