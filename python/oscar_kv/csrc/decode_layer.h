// decode_attention() inside another operator.
#pragma once

#include "kernels/decode/decode_attention.h"
#include "oscar_kv/csrc/windows.h"

namespace oscar_kv {

// What all decode attention over a layer shares.
struct DecodeLayer {
  oscar::kernels::PagedDecodeParams params;
  WindowPool windows;
  std::int32_t pages, positions;
  std::int64_t workspace_bytes;
};

DecodeLayer decode_layer(const Arguments& arguments, const Tensor& pool, const Tensor& windows, const Tensor& key_sigma,
                         const Tensor& value_sigma, const std::optional<Tensor>& phases,
                         const std::optional<Tensor>& tile_phases, const Tensor& workspace, double scale,
                         std::int64_t sink, std::int64_t recent, std::int64_t window,
                         const std::vector<std::int64_t>& key_code, const std::vector<std::int64_t>& value_code);

// Launches the kernel for lengths.size(0) sequences with `group` query heads for each KV head. The caller has set the
// queries in layer.params, and allocates out and lse.
void launch_decode(const Arguments& arguments, const DecodeLayer& layer, std::int64_t group, const Tensor& table,
                   const Tensor& window_table, const Tensor& lengths, float* out, float* lse);

}  // namespace oscar_kv
