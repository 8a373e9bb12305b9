// Writes new rows to the windows.
#include <algorithm>

#include "oscar_kv/csrc/layers.h"

namespace oscar_kv {
namespace {

// [1 or Hkv, d, d]; null for the identity.
const float* matrix(const Arguments& arguments, const std::optional<Tensor>& tensor, const char* name,
                    std::int64_t kv_heads, std::int64_t d, std::int32_t& heads) {
  if (!tensor.has_value()) return nullptr;
  return arguments.matrices<float>(*tensor, name, ScalarType::Float, {kAny, d, d}, kv_heads, heads);
}

}  // namespace

oscar::kernels::AppendTokensParams append_layer(const Arguments& arguments, const Tensor& windows, std::int64_t d,
                                                const std::optional<Tensor>& query_matrix,
                                                const std::optional<Tensor>& key_matrix,
                                                const std::optional<Tensor>& value_matrix, const Means& means) {
  oscar::kernels::AppendTokensParams p;
  p.window_pages = windows_of(arguments, windows, kAny, d);
  const std::int64_t kv_heads = windows.size(1);
  std::int32_t query_heads = 0;
  p.query_matrix = matrix(arguments, query_matrix, "query_matrix", kv_heads, d, query_heads);
  p.key_matrix = matrix(arguments, key_matrix, "key_matrix", kv_heads, d, p.matrix_heads);
  p.value_matrix = matrix(arguments, value_matrix, "value_matrix", kv_heads, d, p.value_matrix_heads);
  if (query_heads != 0 && query_heads != p.matrix_heads) {
    arguments.refuse("query_matrix and key_matrix are of different numbers of KV heads");
  }
  means.put(arguments, kv_heads, d, p.key_mean, p.value_mean, p.rope_phases);
  p.kv_heads = arguments.int32(kv_heads, "KV heads"), p.head_dim = arguments.int32(d, "head_dim");
  return p;
}

void append_rows(const Arguments& arguments, oscar::kernels::AppendTokensParams p, const Sequences& sequences,
                 const Tensor* query, const Tensor& key, const Tensor& value, void* rotated) {
  const std::int64_t tokens = sequences.count, kv_heads = p.kv_heads, d = p.head_dim;
  p.k = arguments.rows(key, "key", kAny, kv_heads, d), p.k_stride = key.stride(0);
  p.v = arguments.rows(value, "value", kAny, kv_heads, d), p.v_stride = value.stride(0);
  p.rows_bfloat16 = key.scalar_type() == ScalarType::BFloat16;
  p.query_heads = p.kv_heads;
  bool one_type = value.scalar_type() == key.scalar_type();
  std::int64_t rows = std::min(key.size(0), value.size(0));
  if (query != nullptr) {
    p.q = arguments.rows(*query, "query", kAny, query->dim() == 3 ? query->size(1) : kAny, d);
    p.q_stride = query->stride(0), rows = std::min(rows, query->size(0));
    p.query_heads = arguments.int32(query->size(1), "query heads");
    one_type = one_type && query->scalar_type() == key.scalar_type();
    p.query = static_cast<std::uint16_t*>(rotated);
  }
  if (!one_type) arguments.refuse("query, key and value have different types, expected one of BFloat16 and Float");
  if (rows < tokens) {
    arguments.refuse("query, key and value have " + std::to_string(rows) + " rows for " + std::to_string(tokens) +
                     " sequences");
  }
  sequences.put(p);
  p.tokens = sequences.count;
  if (tokens > 0) arguments.launched(oscar::kernels::append_tokens(p, arguments.stream()), "append_tokens");
}

Tensor append_tokens(const Tensor& windows, const Tensor& window_table, const std::optional<Tensor>& query,
                     const Tensor& key, const Tensor& value, const Tensor& lengths,
                     const std::optional<Tensor>& query_matrix, const std::optional<Tensor>& key_matrix,
                     const std::optional<Tensor>& value_matrix, const std::optional<Tensor>& key_mean,
                     const std::optional<Tensor>& value_mean, std::int64_t sink) {
  const Arguments arguments("append_tokens", key);
  if (key.dim() != 3) arguments.refuse("key has " + std::to_string(key.dim()) + " dimensions, expected [N, Hkv, d]");
  const oscar::kernels::AppendTokensParams layer = append_layer(
      arguments, windows, key.size(2), query_matrix, key_matrix, value_matrix, {key_mean, value_mean, std::nullopt});
  arguments.get<std::int32_t>(lengths, "lengths", ScalarType::Int, {key.size(0)});
  Tensor rotated = arguments.empty({0}, ScalarType::BFloat16);
  if (query.has_value()) {
    group_of(arguments, *query, layer.kv_heads);
    rotated = arguments.empty({key.size(0), query->size(1), key.size(2)}, ScalarType::BFloat16);
  }
  append_rows(arguments, layer, {arguments, lengths, window_table, sink}, query.has_value() ? &*query : nullptr, key,
              value, rotated.data_ptr());
  return rotated;
}

STABLE_TORCH_LIBRARY_IMPL(oscar_kv, CUDA, m) { m.impl("append_tokens", TORCH_BOX(&append_tokens)); }

}  // namespace oscar_kv
