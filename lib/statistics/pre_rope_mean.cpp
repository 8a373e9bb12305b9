#include "statistics/pre_rope_mean.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/errors.h"

namespace oscar {

at::Tensor pre_rope_key_mean(const Statistics& s, std::size_t layer) {
  if (!s.layers[layer].pre_k_sum.defined()) {
    throw InputError(
        "the statistics hold no moments of keys before RoPE, which centering before RoPE needs: collect them again "
        "with "
        "this version, or fit with --center mean");
  }
  return s.layers[layer].pre_k_sum / static_cast<double>(std::max<std::int64_t>(s.tokens, 1));
}

}  // namespace oscar
