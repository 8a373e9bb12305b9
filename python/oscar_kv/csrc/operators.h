// The operators on CUDA. python/oscar_kv/ops/operators.py has the schemas, the meaning of the arguments and the torch
// reference.
#pragma once

#include <tuple>

#include "oscar_kv/csrc/arguments.h"

namespace oscar_kv {

// Whether the kernels run on the device of `like`: the CUDA error or 0, the driver's version and the version for PTX.
std::tuple<std::int64_t, std::int64_t, std::int64_t> device_code(const Tensor& like);

std::int64_t decode_workspace_bytes(const Tensor& like, std::int64_t head_dim, std::int64_t group, std::int64_t batch,
                                    std::int64_t kv_heads, std::int64_t page_queries);

std::tuple<Tensor, Tensor> decode_attention(
    const Tensor& query, const Tensor& pool, const Tensor& table, const Tensor& windows, const Tensor& window_table,
    const Tensor& lengths, const Tensor& key_sigma, const Tensor& value_sigma, const std::optional<Tensor>& turned,
    const std::optional<Tensor>& phases, const std::optional<Tensor>& tile_phases, const Tensor& workspace,
    double scale, std::int64_t sink, std::int64_t recent, std::int64_t flush, std::int64_t window, bool want_lse,
    const std::vector<std::int64_t>& key_code, const std::vector<std::int64_t>& value_code);

// On the CPU: the phase tables that decode_attention reads for keys centered before RoPE.
Tensor make_tile_phases(const Tensor& frequencies);

Tensor append_tokens(const Tensor& windows, const Tensor& window_table, const std::optional<Tensor>& query,
                     const Tensor& key, const Tensor& value, const Tensor& lengths,
                     const std::optional<Tensor>& query_matrix, const std::optional<Tensor>& key_matrix,
                     const std::optional<Tensor>& value_matrix, const std::optional<Tensor>& key_mean,
                     const std::optional<Tensor>& value_mean, std::int64_t sink);

// append_tokens() inside another operator. phases: the key mean was taken before RoPE; then *turned, if requested,
// receives the phase queries [N, Hkv, g, d] FP32.
Tensor append_rows(const Arguments& arguments, const Tensor& windows, const Tensor& window_table,
                   const std::optional<Tensor>& query, const Tensor& key, const Tensor& value, const Tensor& lengths,
                   const std::optional<Tensor>& query_matrix, const std::optional<Tensor>& key_matrix,
                   const std::optional<Tensor>& value_matrix, const std::optional<Tensor>& key_mean,
                   const std::optional<Tensor>& value_mean, const std::optional<Tensor>& phases, std::int64_t sink,
                   std::optional<Tensor>* turned);

void step_tokens(const Tensor& output, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& pool,
                 const Tensor& table, const Tensor& windows, const Tensor& window_table, const Tensor& lengths,
                 const Tensor& query_matrix, const Tensor& key_matrix, const Tensor& value_matrix,
                 const Tensor& output_matrix, const std::optional<Tensor>& key_mean,
                 const std::optional<Tensor>& value_mean, const std::optional<Tensor>& phases,
                 const std::optional<Tensor>& tile_phases, const Tensor& key_sigma, const Tensor& value_sigma,
                 const Tensor& workspace, double scale, std::int64_t sink, std::int64_t recent, std::int64_t flush,
                 const std::vector<std::int64_t>& key_code, const std::vector<std::int64_t>& value_code);

// On the host: writes the descriptors of a layer, two LeavingSide, for flush_layers(). Returns the words of shared
// memory that flush_layers() needs for it.
std::int64_t describe_layer(const Tensor& sides, const Tensor& pool, const Tensor& windows, const Tensor& key_sigma,
                            const Tensor& value_sigma, const Tensor& key_clip, const Tensor& value_clip,
                            const Tensor& bad, const std::vector<std::int64_t>& key_code,
                            const std::vector<std::int64_t>& value_code);

void flush_layers(const Tensor& lengths, const Tensor& table, const Tensor& window_table, const Tensor& sides,
                  std::int64_t words, std::int64_t kv_heads, std::int64_t head_dim, std::int64_t sink,
                  std::int64_t recent, bool search);

void flush_tokens(const Tensor& pool, const Tensor& windows, const Tensor& window_table, const Tensor& table,
                  const Tensor& lengths, const Tensor& key_sigma, const Tensor& value_sigma, const Tensor& key_clip,
                  const Tensor& value_clip, const Tensor& bad, std::int64_t sink, std::int64_t recent,
                  std::int64_t flush, bool search, const std::vector<std::int64_t>& key_code,
                  const std::vector<std::int64_t>& value_code);

void quantize_rows(const Tensor& pool, const Tensor& key, const Tensor& value, const Tensor& runs,
                   const Tensor& key_sigma, const Tensor& value_sigma, const Tensor& key_clip, const Tensor& value_clip,
                   const Tensor& bad, bool search, const std::vector<std::int64_t>& key_code,
                   const std::vector<std::int64_t>& value_code);

std::tuple<Tensor, Tensor> dequantize_pages(const Tensor& pool, const Tensor& runs, const Tensor& key_sigma,
                                            const Tensor& value_sigma, const std::vector<std::int64_t>& key_code,
                                            const std::vector<std::int64_t>& value_code);

void past_rows(const Tensor& pool, const Tensor& windows, const Tensor& tiles, const Tensor& key, const Tensor& value,
               const Tensor& key_matrix, const Tensor& value_matrix, const std::optional<Tensor>& key_mean,
               const std::optional<Tensor>& value_mean, const std::optional<Tensor>& phases, const Tensor& key_sigma,
               const Tensor& value_sigma, const Tensor& key_out, const Tensor& value_out,
               const std::vector<std::int64_t>& key_code, const std::vector<std::int64_t>& value_code);

void new_rows(const Tensor& pool, const Tensor& windows, const Tensor& key, const Tensor& value, const Tensor& runs,
              const Tensor& key_matrix, const Tensor& value_matrix, const std::optional<Tensor>& key_mean,
              const std::optional<Tensor>& value_mean, const std::optional<Tensor>& phases, const Tensor& key_sigma,
              const Tensor& value_sigma, const Tensor& key_clip, const Tensor& value_clip, const Tensor& bad,
              bool search, const std::vector<std::int64_t>& key_code, const std::vector<std::int64_t>& value_code);

void quantize_windows(const Tensor& pool, const Tensor& windows, const Tensor& window_table, const Tensor& runs,
                      const Tensor& key_sigma, const Tensor& value_sigma, const Tensor& key_clip,
                      const Tensor& value_clip, const Tensor& bad, std::int64_t sink, bool search,
                      const std::vector<std::int64_t>& key_code, const std::vector<std::int64_t>& value_code);

void merge_outputs(const Tensor& out, const Tensor& lse, const Tensor& part, const Tensor& part_lse);

}  // namespace oscar_kv
