// append_tokens() inside another operator.
#pragma once

#include "kernels/append/append_tokens.h"
#include "oscar_kv/csrc/windows.h"

namespace oscar_kv {

// What all appends to a layer share.
struct AppendLayer {
  oscar::kernels::AppendTokensParams params;
  WindowPool windows;
  std::int32_t positions;
};

// phases: the key mean was taken before RoPE.
AppendLayer append_layer(const Arguments& arguments, const Tensor& windows, std::int64_t head_dim,
                         const std::optional<Tensor>& query_matrix, const std::optional<Tensor>& key_matrix,
                         const std::optional<Tensor>& value_matrix, const std::optional<Tensor>& key_mean,
                         const std::optional<Tensor>& value_mean, const std::optional<Tensor>& phases,
                         std::int64_t sink);

// The query heads for each KV head of queries [.., Hq, d].
inline std::int64_t group_of(const Arguments& arguments, const Tensor& query, std::int64_t kv_heads) {
  if (query.dim() != 3 || kv_heads == 0 || query.size(1) % kv_heads != 0) {
    arguments.refuse("the query heads are no multiple of " + std::to_string(kv_heads) + " KV heads");
  }
  return query.size(1) / kv_heads;
}

// The newest rows of lengths.size(0) sequences: the first of query [.., Hq, d], if given, key and value [.., Hkv, d].
// rotated receives the queries in the cache basis.
void append_rows(const Arguments& arguments, const AppendLayer& layer, const Tensor* query, const Tensor& key,
                 const Tensor& value, const Tensor& window_table, const Tensor& lengths, void* rotated);

}  // namespace oscar_kv
