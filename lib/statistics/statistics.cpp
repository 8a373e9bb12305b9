#include "statistics/statistics.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "base/errors.h"

namespace oscar {

at::Tensor pre_rope_key_mean(const Statistics& s, std::size_t layer) {
  if (!s.layers[layer].pre_k_sum.defined()) {
    throw InputError(
        "the statistics hold no moments of keys before RoPE, which centering before RoPE needs: collect them again "
        "with this version, or fit with --center mean");
  }
  return s.layers[layer].pre_k_sum / static_cast<double>(std::max<std::int64_t>(s.tokens, 1));
}

std::int64_t longest_distance(const Statistics& s) {
  if (!s.metadata.is_object()) return 0;
  const auto parts = s.metadata.find("parts");
  if (parts == s.metadata.end() || !parts->is_array()) return 0;
  std::int64_t longest = 0;
  for (const Json& part : *parts) {
    const auto found = part.is_object() ? part.find("longest_sequence") : part.end();
    if (!part.is_object() || found == part.end() || !found->is_number_integer()) return 0;
    longest = std::max(longest, found->get<std::int64_t>());
  }
  return std::max<std::int64_t>(longest - 1, 0);
}

}  // namespace oscar
