// append_tokens() inside another operator.
#pragma once

#include "oscar_kv/csrc/arguments.h"

namespace oscar_kv {

// phases: the key mean was taken before RoPE; then *turned, if requested, receives the phase queries [N, Hkv, g, d]
// FP32.
Tensor append_rows(const Arguments& arguments, const Tensor& windows, const Tensor& window_table,
                   const std::optional<Tensor>& query, const Tensor& key, const Tensor& value, const Tensor& lengths,
                   const std::optional<Tensor>& query_matrix, const std::optional<Tensor>& key_matrix,
                   const std::optional<Tensor>& value_matrix, const std::optional<Tensor>& key_mean,
                   const std::optional<Tensor>& value_mean, const std::optional<Tensor>& phases, std::int64_t sink,
                   std::optional<Tensor>* turned);

}  // namespace oscar_kv
