// Decode attention of one new token of each sequence over the sink window, the quantized tokens and the recent window.
#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <tuple>

#include "kernels/decode/page_queries.h"
#include "kernels/decode/tile_phases.h"
#include "oscar_kv/csrc/layers.h"

namespace oscar_kv {

std::int64_t decode_workspace_bytes(const Tensor& like, std::int64_t head_dim, std::int64_t group, std::int64_t batch,
                                    std::int64_t kv_heads, std::int64_t page_queries) {
  const Arguments arguments("decode_workspace_bytes", like);
  return static_cast<std::int64_t>(oscar::kernels::decode_attention_workspace_bytes(
      arguments.int32(head_dim, "head_dim"), arguments.int32(group, "group"), arguments.int32(batch, "batch"),
      arguments.int32(kv_heads, "kv_heads"), arguments.int32(page_queries, "page_queries")));
}

// On the CPU: the phase tables that decode_attention reads for keys centered before RoPE.
Tensor make_tile_phases(const Tensor& frequencies) {
  const std::int64_t d = frequencies.dim() == 1 ? 2 * frequencies.size(0) : 0;
  if (!frequencies.is_cpu() || frequencies.scalar_type() != ScalarType::Float || !frequencies.is_contiguous() ||
      (d != 64 && d != 128 && d != 256 && d != 512)) {
    throw std::runtime_error("oscar_kv::tile_phases: frequencies are no Float [32], [64], [128] or [256] on the CPU");
  }
  const std::vector<std::int64_t> shape{oscar::kernels::tile_phases_count(static_cast<int>(d))};
  Tensor table = torch::stable::new_empty(frequencies, shape, ScalarType::Short);
  const float* radians = static_cast<const float*>(frequencies.data_ptr());
  if (std::any_of(radians, radians + d / 2, [](float x) { return !(std::abs(x) <= oscar::kernels::kMostFrequency); })) {
    throw std::runtime_error(
        "oscar_kv::tile_phases: a frequency of RoPE is above one radian a token; use the reference");
  }
  oscar::kernels::fill_tile_phases(static_cast<int>(d), radians, static_cast<std::uint16_t*>(table.data_ptr()));
  return table;
}

DecodeLayer decode_layer(const Arguments& arguments, const Tensor& pool, const Tensor& windows, const Codes& codes,
                         const std::optional<Tensor>& phases, const std::optional<Tensor>& tile_phases,
                         const Tensor& workspace, double scale, std::int64_t recent, std::int64_t window) {
  if (phases.has_value() != tile_phases.has_value()) {
    arguments.refuse("phases and tile_phases belong together; pass both or none");
  }
  const PageCode code = codes.page(arguments);
  if (code.key.blocks != code.value.blocks) {
    arguments.refuse("keys and values have different layouts, which the kernel does not read; use the torch reference");
  }
  const std::int64_t d = code.head_dim();
  oscar::kernels::PagedDecodeParams p{};
  p.window_pages = windows_of(arguments, windows, kAny, d);
  const std::int64_t kv_heads = windows.size(1);
  p.pages = arguments.get<std::uint8_t>(pool, "pool", ScalarType::Byte, {kAny, kv_heads, code.page.bytes()});
  p.key_sigma = arguments.get<float>(codes.key_sigma, "key_sigma", ScalarType::Float, {kv_heads, 4});
  p.value_sigma = arguments.get<float>(codes.value_sigma, "value_sigma", ScalarType::Float, {kv_heads, 4});
  p.kv_heads = arguments.int32(kv_heads, "KV heads"), p.head_dim = code.head_dim();
  p.recent = arguments.int32(recent, "recent"), p.sliding_window = arguments.int32(window, "window");
  p.flush = 1, p.scale = static_cast<float>(scale), p.out_float = true;
  p.blocks = code.key.blocks;
  std::copy(code.key.widths.begin(), code.key.widths.end(), p.key_widths);
  std::copy(code.value.widths.begin(), code.value.widths.end(), p.value_widths);
  p.rope_phases = arguments.get<float>(phases, "phases", ScalarType::Float, {kAny, d});
  p.tile_phases = arguments.get<std::uint16_t>(tile_phases, "tile_phases", ScalarType::Short,
                                               {oscar::kernels::tile_phases_count(code.head_dim())});
  p.workspace = arguments.address(workspace, "workspace", ScalarType::Byte, {kAny});
  return {p, workspace.numel()};
}

void launch_decode(const Arguments& arguments, const DecodeLayer& layer, const Sequences& sequences, std::int64_t group,
                   const Tensor& table, float* out, float* lse) {
  oscar::kernels::PagedDecodeParams p = layer.params;
  sequences.require_recent(arguments, p.recent);  // the newest token is still in the ring
  sequences.put(p), sequences.put_pages(arguments, table, p);
  p.query_heads = arguments.int32(p.kv_heads * group, "query heads");
  const int queries =
      p.rope_phases == nullptr ? 0 : oscar::kernels::page_queries(p.max_pages, p.sink_pages + p.ring_pages);
  const std::size_t needed = oscar::kernels::decode_attention_workspace_bytes(p.head_dim, static_cast<int>(group),
                                                                              p.batch, p.kv_heads, queries);
  if (static_cast<std::size_t>(layer.workspace_bytes) < needed) {
    arguments.refuse("workspace has " + std::to_string(layer.workspace_bytes) + " bytes, expected at least " +
                     std::to_string(needed));
  }
  p.out = out, p.lse = lse;
  arguments.launched(oscar::kernels::decode_attention(p, arguments.stream()), "decode_attention");
}

std::tuple<Tensor, Tensor> decode_attention(const Tensor& query, const Tensor& pool, const Tensor& table,
                                            const Tensor& windows, const Tensor& window_table, const Tensor& lengths,
                                            const Tensor& key_sigma, const Tensor& value_sigma,
                                            const std::optional<Tensor>& turned, const std::optional<Tensor>& phases,
                                            const std::optional<Tensor>& tile_phases, const Tensor& workspace,
                                            double scale, std::int64_t sink, std::int64_t recent, std::int64_t window,
                                            bool want_lse, const std::vector<std::int64_t>& key_code,
                                            const std::vector<std::int64_t>& value_code) {
  const Arguments arguments("decode_attention", query);
  if (turned.has_value() != phases.has_value()) {
    arguments.refuse("turned, phases and tile_phases belong together; pass all three or none");
  }
  if (query.dim() != 4) {
    arguments.refuse("query has " + std::to_string(query.dim()) + " dimensions, expected [B, Hkv, g, d]");
  }
  const std::int64_t batch = query.size(0), kv_heads = query.size(1), group = query.size(2);
  Tensor output = arguments.empty({batch, kv_heads, group, query.size(3)}, ScalarType::Float);
  Tensor lse =
      want_lse ? arguments.empty({batch, kv_heads, group}, ScalarType::Float) : arguments.empty({0}, ScalarType::Float);
  // The kernel skips sequences of length 0. Their output is 0.
  arguments.launched(cudaMemsetAsync(output.data_ptr(), 0, static_cast<std::size_t>(output.numel()) * sizeof(float),
                                     arguments.stream()),
                     "clearing the output");
  if (want_lse) torch::stable::fill_(lse, -std::numeric_limits<double>::infinity());
  DecodeLayer layer = decode_layer(arguments, pool, windows, {key_sigma, value_sigma, key_code, value_code}, phases,
                                   tile_phases, workspace, scale, recent, window);
  oscar::kernels::PagedDecodeParams& p = layer.params;
  p.q = arguments.address(query, "query", ScalarType::BFloat16, {batch, p.kv_heads, kAny, p.head_dim});
  p.position_query = arguments.get<float>(turned, "turned", ScalarType::Float, {batch, kv_heads, group, p.head_dim});
  arguments.get<std::int32_t>(lengths, "lengths", ScalarType::Int, {batch});
  launch_decode(arguments, layer, {arguments, lengths, window_table, sink}, group, table,
                static_cast<float*>(output.data_ptr()), want_lse ? static_cast<float*>(lse.data_ptr()) : nullptr);
  return {output, lse};
}

STABLE_TORCH_LIBRARY_IMPL(oscar_kv, CPU, m) { m.impl("tile_phases", TORCH_BOX(&make_tile_phases)); }

STABLE_TORCH_LIBRARY_IMPL(oscar_kv, CUDA, m) {
  m.impl("decode_workspace_bytes", TORCH_BOX(&decode_workspace_bytes));
  m.impl("decode_attention", TORCH_BOX(&decode_attention));
}

}  // namespace oscar_kv
