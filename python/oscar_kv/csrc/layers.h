// append_tokens(), decode_attention() and new_rows() inside another operator. What all calls for a layer share is put
// into parameters of the kernels once; the functions that launch them add the rest.
#pragma once

#include "kernels/append/append_tokens.h"
#include "kernels/chunks/new_rows.h"
#include "kernels/decode/decode_attention.h"
#include "oscar_kv/csrc/codes.h"
#include "oscar_kv/csrc/windows.h"

namespace oscar_kv {

// phases: the key mean was taken before RoPE.
struct Means {
  const std::optional<Tensor>&key, &value, &phases;

  // Into pointers of a kernel's parameters.
  void put(const Arguments& arguments, std::int64_t kv_heads, std::int64_t d, const float*& of_key,
           const float*& of_value, const float*& of_phases) const {
    of_key = arguments.get<float>(key, "key_mean", ScalarType::Float, {kv_heads, d});
    of_value = arguments.get<float>(value, "value_mean", ScalarType::Float, {kv_heads, d});
    of_phases = arguments.get<float>(phases, "phases", ScalarType::Float, {kAny, d});
  }
};

oscar::kernels::AppendTokensParams append_layer(const Arguments& arguments, const Tensor& windows, std::int64_t d,
                                                const std::optional<Tensor>& query_matrix,
                                                const std::optional<Tensor>& key_matrix,
                                                const std::optional<Tensor>& value_matrix, const Means& means);

// The query heads for each KV head of queries [.., Hq, d].
inline std::int64_t group_of(const Arguments& arguments, const Tensor& query, std::int64_t kv_heads) {
  if (query.dim() != 3 || kv_heads == 0 || query.size(1) % kv_heads != 0) {
    arguments.refuse("the query heads are no multiple of " + std::to_string(kv_heads) + " KV heads");
  }
  return query.size(1) / kv_heads;
}

// The newest rows of sequences: the first of query [.., Hq, d], if given, key and value [.., Hkv, d]. rotated receives
// the queries in the cache basis.
void append_rows(const Arguments& arguments, oscar::kernels::AppendTokensParams p, const Sequences& sequences,
                 const Tensor* query, const Tensor& key, const Tensor& value, void* rotated);

struct DecodeLayer {
  oscar::kernels::PagedDecodeParams params;
  std::int64_t workspace_bytes;
};

DecodeLayer decode_layer(const Arguments& arguments, const Tensor& pool, const Tensor& windows, const Codes& codes,
                         const std::optional<Tensor>& phases, const std::optional<Tensor>& tile_phases,
                         const Tensor& workspace, double scale, std::int64_t recent, std::int64_t window);

// Launches the kernel for sequences with `group` query heads for each KV head. The caller has set the queries in
// layer.params, and allocates out and lse.
void launch_decode(const Arguments& arguments, const DecodeLayer& layer, const Sequences& sequences, std::int64_t group,
                   const Tensor& table, float* out, float* lse);

struct NewRowsLayer {
  oscar::kernels::NewRowsParams key, value;
};

NewRowsLayer new_rows_layer(const Arguments& arguments, const Tensor& pool, const Tensor& windows,
                            const Tensor& key_matrix, const Tensor& value_matrix, const Means& means,
                            const Writing& writing);

void launch_new_rows(const Arguments& arguments, NewRowsLayer layer, const Tensor& key, const Tensor& value,
                     const Tensor& runs);

}  // namespace oscar_kv
