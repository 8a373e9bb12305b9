// Decode attention of one new token of each sequence over the sink window, the quantized tokens and the recent window.
#include "kernels/decode/decode_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <tuple>

#include "kernels/decode/model_outputs.h"
#include "kernels/decode/page_queries.h"
#include "kernels/decode/tile_phases.h"
#include "oscar_kv/csrc/append_rows.h"
#include "oscar_kv/csrc/codes.h"
#include "oscar_kv/csrc/table_check.h"
#include "oscar_kv/csrc/windows.h"

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

namespace {

// What logits by position are computed of: phase queries, or the model's queries and the mean of its keys.
struct Positions {
  std::optional<Tensor> turned;         // [B, Hkv, g, d] FP32
  const Tensor* model_query = nullptr;  // [B, Hq, d] BF16
  std::optional<Tensor> key_mean;       // [Hkv, d]
};

// Whether page queries may be computed of these queries beside the append, which turns them into the cache's basis.
bool reads_model_queries(const Tensor& query) {
  return query.scalar_type() == ScalarType::BFloat16 && query.stride(0) % 4 == 0 &&
         reinterpret_cast<std::uintptr_t>(query.data_ptr()) % 8 == 0;
}

// Launches the kernel. Queries are [B, Hkv, g, d] or [B, Hq, d], which have the same layout in memory. The caller
// allocates out and lse.
void launch_decode(const Arguments& arguments, const Tensor& query, std::int64_t kv_heads, const Tensor& pool,
                   const Tensor& table, const Tensor& windows, const Tensor& window_table, const Tensor& lengths,
                   const Tensor& key_sigma, const Tensor& value_sigma, const Positions& positions,
                   const std::optional<Tensor>& phases, const std::optional<Tensor>& tile_phases,
                   const Tensor& workspace, double scale, std::int64_t sink, std::int64_t recent, std::int64_t window,
                   const std::vector<std::int64_t>& key_code, const std::vector<std::int64_t>& value_code, float* out,
                   float* lse) {
  const bool by_position = positions.turned.has_value() || positions.model_query != nullptr;
  if (by_position != phases.has_value() || by_position != tile_phases.has_value()) {
    arguments.refuse("turned, phases and tile_phases belong together; pass all three or none");
  }
  const PageCode code(arguments, key_code, value_code);
  if (code.key.blocks != code.value.blocks) {
    arguments.refuse("keys and values have different layouts, which the kernel does not read; use the torch reference");
  }
  const std::int64_t d = code.head_dim(), batch = query.size(0);
  oscar::kernels::PagedDecodeParams p{};
  if (query.dim() == 4) {
    p.q = arguments.address(query, "query", ScalarType::BFloat16, {kAny, kAny, kAny, d});
  } else {
    p.q = arguments.address(query, "query", ScalarType::BFloat16, {kAny, kAny, d});
  }
  const std::int64_t group = batch == 0 || kv_heads == 0 ? 1 : query.numel() / (batch * kv_heads * d);
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
  p.flush = 1, p.sliding_window = arguments.int32(window, "window");
  if (window < 0) arguments.refuse("window is " + std::to_string(window) + ", expected 0 or more");
  require_ring(arguments, held.ring_pages, recent);  // the newest token is still in the ring
  oscar::kernels::StepTables step = held.step(arguments, p.lengths, windows);
  step.table = p.page_table, step.max_pages = p.max_pages, step.pages = arguments.int32(pool.size(0), "pages");
  step.sink = p.sink, step.recent = p.recent;
  step.positions = phases.has_value() ? arguments.int32(phases->size(0), "positions") : 0;
  check_tables(arguments, step);
  p.scale = static_cast<float>(scale);
  p.out_float = true;
  p.blocks = code.key.blocks;
  std::copy(code.key.widths.begin(), code.key.widths.end(), p.key_widths);
  std::copy(code.value.widths.begin(), code.value.widths.end(), p.value_widths);
  p.position_query = arguments.get<float>(positions.turned, "turned", ScalarType::Float, {batch, kv_heads, group, d});
  if (positions.model_query != nullptr) {
    p.model_query = positions.model_query->data_ptr(), p.model_query_stride = positions.model_query->stride(0);
    p.key_mean = arguments.get<float>(positions.key_mean, "key_mean", ScalarType::Float, {kv_heads, d});
  }
  p.rope_phases = arguments.get<float>(phases, "phases", ScalarType::Float, {kAny, d});
  p.tile_phases = arguments.get<std::uint16_t>(tile_phases, "tile_phases", ScalarType::Short,
                                               {oscar::kernels::tile_phases_count(code.head_dim())});
  const int queries = by_position ? oscar::kernels::page_queries(p.max_pages, p.sink_pages + p.ring_pages) : 0;
  const std::size_t needed = oscar::kernels::decode_attention_workspace_bytes(p.head_dim, static_cast<int>(group),
                                                                              p.batch, p.kv_heads, queries);
  p.workspace = arguments.address(workspace, "workspace", ScalarType::Byte, {kAny});
  if (static_cast<std::size_t>(workspace.numel()) < needed) {
    arguments.refuse("workspace has " + std::to_string(workspace.numel()) + " bytes, expected at least " +
                     std::to_string(needed));
  }
  p.out = out, p.lse = lse;
  arguments.launched(oscar::kernels::decode_attention(p, arguments.stream()), "decode_attention");
}

}  // namespace

std::tuple<Tensor, Tensor> decode_attention(const Tensor& query, const Tensor& pool, const Tensor& table,
                                            const Tensor& windows, const Tensor& window_table, const Tensor& lengths,
                                            const Tensor& key_sigma, const Tensor& value_sigma,
                                            const std::optional<Tensor>& turned, const std::optional<Tensor>& phases,
                                            const std::optional<Tensor>& tile_phases, const Tensor& workspace,
                                            double scale, std::int64_t sink, std::int64_t recent, std::int64_t window,
                                            bool want_lse, const std::vector<std::int64_t>& key_code,
                                            const std::vector<std::int64_t>& value_code) {
  const Arguments arguments("decode_attention", query);
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
  launch_decode(arguments, query, kv_heads, pool, table, windows, window_table, lengths, key_sigma, value_sigma,
                {turned}, phases, tile_phases, workspace, scale, sink, recent, window, key_code, value_code,
                static_cast<float*>(output.data_ptr()), want_lse ? static_cast<float*>(lse.data_ptr()) : nullptr);
  return {output, lse};
}

void step_tokens(const Tensor& output, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& pool,
                 const Tensor& table, const Tensor& windows, const Tensor& window_table, const Tensor& lengths,
                 const Tensor& query_matrix, const Tensor& key_matrix, const Tensor& value_matrix,
                 const Tensor& output_matrix, const std::optional<Tensor>& key_mean,
                 const std::optional<Tensor>& value_mean, const std::optional<Tensor>& phases,
                 const std::optional<Tensor>& tile_phases, const Tensor& key_sigma, const Tensor& value_sigma,
                 const Tensor& workspace, double scale, std::int64_t sink, std::int64_t recent,
                 const std::vector<std::int64_t>& key_code, const std::vector<std::int64_t>& value_code) {
  const Arguments arguments("step_tokens", query);
  Positions positions;
  const bool beside = phases.has_value() && reads_model_queries(query);
  const Tensor rotated =
      append_rows(arguments, windows, window_table, query, key, value, lengths, query_matrix, key_matrix, value_matrix,
                  key_mean, value_mean, phases, sink, beside ? nullptr : &positions.turned);
  if (beside) positions.model_query = &query, positions.key_mean = key_mean;
  const std::int64_t batch = query.size(0), heads = query.size(1), d = query.size(2), kv_heads = key.size(1);
  if (batch == 0) return;
  const Tensor rows = arguments.empty({batch, heads, d}, ScalarType::Float);
  launch_decode(arguments, rotated, kv_heads, pool, table, windows, window_table, lengths, key_sigma, value_sigma,
                positions, phases, tile_phases, workspace, scale, sink, recent, 0, key_code, value_code,
                static_cast<float*>(rows.data_ptr()), nullptr);
  oscar::kernels::ModelOutputsParams p{};
  p.rows = static_cast<const float*>(rows.data_ptr());
  p.lengths = arguments.get<std::int32_t>(lengths, "lengths", ScalarType::Int, {batch});
  p.matrix = arguments.matrices<float>(output_matrix, "output_matrix", ScalarType::Float, {kAny, d, d}, kv_heads,
                                       p.matrix_heads);
  p.mean = arguments.get<float>(value_mean, "value_mean", ScalarType::Float, {kv_heads, d});
  if (output.scalar_type() != ScalarType::BFloat16) arguments.refuse("output is not BFloat16");
  p.out = static_cast<std::uint16_t*>(const_cast<void*>(arguments.rows(output, "output", batch, heads, d)));
  p.out_stride = output.stride(0);
  p.batch = arguments.int32(batch, "batch"), p.query_heads = arguments.int32(heads, "query heads");
  p.kv_heads = arguments.int32(kv_heads, "KV heads"), p.head_dim = arguments.int32(d, "head_dim");
  arguments.launched(oscar::kernels::model_outputs(p, arguments.stream()), "model_outputs");
}

STABLE_TORCH_LIBRARY_IMPL(oscar_kv, CPU, m) { m.impl("tile_phases", TORCH_BOX(&make_tile_phases)); }

STABLE_TORCH_LIBRARY_IMPL(oscar_kv, CUDA, m) {
  m.impl("decode_workspace_bytes", TORCH_BOX(&decode_workspace_bytes));
  m.impl("decode_attention", TORCH_BOX(&decode_attention));
  m.impl("step_tokens", TORCH_BOX(&step_tokens));
}

}  // namespace oscar_kv
