#include "attention/cuda/finite_watch.h"

#include <ATen/ATen.h>

#include <climits>
#include <string>

#include "base/errors.h"

namespace oscar {

FiniteWatch::FiniteWatch(std::int64_t layers, std::int64_t kv_heads, at::Device device)
    : kv_heads_(kv_heads), bad_(at::full({layers, 2}, INT_MAX, at::TensorOptions(at::kInt).device(device))) {}

std::int32_t* FiniteWatch::of(std::int64_t layer, Side side) const {
  return bad_.data_ptr<std::int32_t>() + 2 * layer + (side == Side::kKey ? 0 : 1);
}

void FiniteWatch::check(std::int64_t first, std::int64_t last) const {
  const at::Tensor found = bad_.to(at::kCPU);
  for (std::int64_t layer = first; layer <= last; ++layer) {
    for (const Side side : {Side::kKey, Side::kValue}) {
      const std::int64_t at = found[layer][side == Side::kKey ? 0 : 1].item<std::int32_t>();
      if (at == INT_MAX) continue;
      throw NumericalError("layer " + std::to_string(layer) + ", KV head " + std::to_string(at % kv_heads_) +
                           (side == Side::kKey ? ", key" : ", value") + " of token " + std::to_string(at / kv_heads_) +
                           ": holds a NaN or an infinity; expected finite keys and values");
    }
  }
}

}  // namespace oscar
