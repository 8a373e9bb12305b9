// Decode attention: one token of each sequence against sink, codes and recent window.
#include "kernels/decode/decode_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "kernels/decode/page_queries.h"
#include "kernels/decode/tile_phases.h"
#include "oscar_kv/csrc/codes.h"
#include "oscar_kv/csrc/operators.h"
#include "oscar_kv/csrc/windows.h"

namespace oscar_kv {

std::int64_t decode_workspace_bytes(const Tensor& like, std::int64_t head_dim, std::int64_t group, std::int64_t batch,
                                    std::int64_t kv_heads, std::int64_t page_queries) {
  const Arguments arguments("decode_workspace_bytes", like);
  return static_cast<std::int64_t>(oscar::kernels::decode_attention_workspace_bytes(
      arguments.int32(head_dim, "head_dim"), arguments.int32(group, "group"), arguments.int32(batch, "batch"),
      arguments.int32(kv_heads, "kv_heads"), arguments.int32(page_queries, "page_queries")));
}

Tensor make_tile_phases(const Tensor& frequencies) {
  const std::int64_t d = frequencies.dim() == 1 ? 2 * frequencies.size(0) : 0;
  if (!frequencies.is_cpu() || frequencies.scalar_type() != ScalarType::Float || !frequencies.is_contiguous() ||
      (d != 64 && d != 128 && d != 256)) {
    throw std::runtime_error("oscar_kv::tile_phases: frequencies are no Float [32], [64] or [128] on the CPU");
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

std::tuple<Tensor, Tensor> decode_attention(
    const Tensor& query, const Tensor& pool, const Tensor& table, const Tensor& windows, const Tensor& window_table,
    const Tensor& lengths, const Tensor& key_sigma, const Tensor& value_sigma, const std::optional<Tensor>& turned,
    const std::optional<Tensor>& phases, const std::optional<Tensor>& tile_phases, const Tensor& workspace,
    double scale, std::int64_t sink, std::int64_t recent, std::int64_t flush, std::int64_t window, bool want_lse,
    const std::vector<std::int64_t>& key_code, const std::vector<std::int64_t>& value_code) {
  const Arguments arguments("decode_attention", query);
  if (turned.has_value() != phases.has_value() || turned.has_value() != tile_phases.has_value()) {
    arguments.refuse("turned, phases and tile_phases belong together; pass all three or none");
  }
  const PageCode code(arguments, key_code, value_code);
  if (code.key.blocks != code.value.blocks) {
    arguments.refuse("keys and values have different layouts, which the kernel does not read; use the torch reference");
  }
  const std::int64_t batch = query.dim() == 4 ? query.size(0) : kAny,
                     kv_heads = query.dim() == 4 ? query.size(1) : kAny, d = code.head_dim();
  oscar::kernels::PagedDecodeParams p{};
  p.q = arguments.address(query, "query", ScalarType::BFloat16, {kAny, kAny, kAny, d});
  const std::int64_t group = query.size(2);
  const Windows held(arguments, windows, window_table, d, sink);
  p.pages = arguments.get<std::uint8_t>(pool, "pool", ScalarType::Byte, {kAny, kv_heads, code.page.bytes()});
  p.page_table = arguments.get<std::int32_t>(table, "table", ScalarType::Int, {batch, kAny});
  p.lengths = arguments.get<std::int32_t>(lengths, "lengths", ScalarType::Int, {batch});
  p.key_sigma = arguments.get<float>(key_sigma, "key_sigma", ScalarType::Float, {kv_heads, 4});
  p.value_sigma = arguments.get<float>(value_sigma, "value_sigma", ScalarType::Float, {kv_heads, 4});
  if (held.sequences != batch || held.kv_heads != kv_heads) {
    arguments.refuse("windows are of " + std::to_string(held.sequences) + " sequences and " +
                     std::to_string(held.kv_heads) + " KV heads, the queries of " + std::to_string(batch) + " and " +
                     std::to_string(kv_heads));
  }
  p.window_pages = held.pages, p.window_table = held.table;
  p.sink_pages = held.sink_pages, p.ring_pages = held.ring_pages;
  p.batch = arguments.int32(batch, "batch"), p.kv_heads = arguments.int32(kv_heads, "KV heads");
  p.query_heads = arguments.int32(kv_heads * group, "query heads"), p.head_dim = code.head_dim();
  p.max_pages = arguments.int32(table.size(1), "pages of a sequence");
  p.sink = arguments.int32(sink, "sink"), p.recent = arguments.int32(recent, "recent");
  p.flush = arguments.int32(flush, "flush"), p.sliding_window = arguments.int32(window, "window");
  p.scale = static_cast<float>(scale);
  p.out_float = true;
  p.blocks = code.key.blocks;
  std::copy(code.key.widths.begin(), code.key.widths.end(), p.key_widths);
  std::copy(code.value.widths.begin(), code.value.widths.end(), p.value_widths);
  p.position_query = arguments.get<float>(turned, "turned", ScalarType::Float, {batch, kv_heads, group, d});
  p.rope_phases = arguments.get<float>(phases, "phases", ScalarType::Float, {kAny, d});
  p.tile_phases = arguments.get<std::uint16_t>(tile_phases, "tile_phases", ScalarType::Short,
                                               {oscar::kernels::tile_phases_count(code.head_dim())});
  const int queries = turned.has_value() ? oscar::kernels::page_queries(p.max_pages, p.sink_pages + p.ring_pages) : 0;
  const std::size_t needed = oscar::kernels::decode_attention_workspace_bytes(p.head_dim, static_cast<int>(group),
                                                                              p.batch, p.kv_heads, queries);
  p.workspace = arguments.address(workspace, "workspace", ScalarType::Byte, {kAny});
  if (static_cast<std::size_t>(workspace.numel()) < needed) {
    arguments.refuse("workspace has " + std::to_string(workspace.numel()) + " bytes, expected at least " +
                     std::to_string(needed));
  }
  Tensor output = arguments.empty({batch, kv_heads, group, d}, ScalarType::Float);
  Tensor lse =
      want_lse ? arguments.empty({batch, kv_heads, group}, ScalarType::Float) : arguments.empty({0}, ScalarType::Float);
  p.out = output.data_ptr();
  if (want_lse) p.lse = static_cast<float*>(lse.data_ptr());
  const cudaStream_t stream = arguments.stream();
  // A sequence of length 0 is skipped by the kernel and has the output 0.
  arguments.launched(cudaMemsetAsync(p.out, 0, static_cast<std::size_t>(output.numel()) * sizeof(float), stream),
                     "clearing the output");
  if (want_lse) torch::stable::fill_(lse, -std::numeric_limits<double>::infinity());
  arguments.launched(oscar::kernels::decode_attention(p, stream), "decode_attention");
  return {output, lse};
}

}  // namespace oscar_kv
