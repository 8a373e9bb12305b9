// Writes new rows to the windows, and from there into pages.
#include "oscar_kv/csrc/append_rows.h"

#include <algorithm>

#include "oscar_kv/csrc/codes.h"
#include "oscar_kv/csrc/table_check.h"

namespace oscar_kv {
namespace {

// [1 or Hkv, d, d]; null for the identity.
const float* matrix(const Arguments& arguments, const std::optional<Tensor>& tensor, const char* name,
                    std::int64_t kv_heads, std::int64_t d, std::int32_t& heads) {
  if (!tensor.has_value()) return nullptr;
  return arguments.matrices<float>(*tensor, name, ScalarType::Float, {kAny, d, d}, kv_heads, heads);
}

}  // namespace

AppendLayer append_layer(const Arguments& arguments, const Tensor& windows, std::int64_t head_dim,
                         const std::optional<Tensor>& query_matrix, const std::optional<Tensor>& key_matrix,
                         const std::optional<Tensor>& value_matrix, const std::optional<Tensor>& key_mean,
                         const std::optional<Tensor>& value_mean, const std::optional<Tensor>& phases,
                         std::int64_t sink) {
  const std::int64_t d = head_dim;
  AppendLayer layer{{}, WindowPool(arguments, windows, d, sink), 0};
  const std::int64_t kv_heads = layer.windows.kv_heads;
  oscar::kernels::AppendTokensParams& p = layer.params;
  std::int32_t query_heads = 0;
  p.query_matrix = matrix(arguments, query_matrix, "query_matrix", kv_heads, d, query_heads);
  p.key_matrix = matrix(arguments, key_matrix, "key_matrix", kv_heads, d, p.matrix_heads);
  p.value_matrix = matrix(arguments, value_matrix, "value_matrix", kv_heads, d, p.value_matrix_heads);
  if (query_heads != 0 && query_heads != p.matrix_heads) {
    arguments.refuse("query_matrix and key_matrix are of different numbers of KV heads");
  }
  p.key_mean = arguments.get<float>(key_mean, "key_mean", ScalarType::Float, {kv_heads, d});
  p.value_mean = arguments.get<float>(value_mean, "value_mean", ScalarType::Float, {kv_heads, d});
  p.rope_phases = arguments.get<float>(phases, "phases", ScalarType::Float, {kAny, d});
  p.window_pages = layer.windows.pages, p.kv_heads = layer.windows.kv_heads;
  p.head_dim = arguments.int32(d, "head_dim"), p.sink = arguments.int32(sink, "sink");
  p.sink_pages = layer.windows.sink_pages;
  layer.positions = phases.has_value() ? arguments.int32(phases->size(0), "positions") : 0;
  return layer;
}

void append_rows(const Arguments& arguments, const AppendLayer& layer, const Tensor* query, const Tensor& key,
                 const Tensor& value, const Tensor& window_table, const Tensor& lengths, void* rotated) {
  oscar::kernels::AppendTokensParams p = layer.params;
  p.lengths = arguments.get<std::int32_t>(lengths, "lengths", ScalarType::Int, {kAny});
  const std::int64_t tokens = lengths.size(0), kv_heads = p.kv_heads, d = p.head_dim;
  const Windows held(arguments, layer.windows, window_table);
  held.require(arguments, tokens);
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
  p.window_table = held.table, p.tokens = arguments.int32(tokens, "tokens"), p.ring_pages = held.ring_pages;
  oscar::kernels::StepTables step = held.step(p.lengths);
  step.sink = p.sink, step.newest_only = true, step.positions = layer.positions;
  check_tables(arguments, step);
  if (tokens > 0) arguments.launched(oscar::kernels::append_tokens(p, arguments.stream()), "append_tokens");
}

Tensor append_tokens(const Tensor& windows, const Tensor& window_table, const std::optional<Tensor>& query,
                     const Tensor& key, const Tensor& value, const Tensor& lengths,
                     const std::optional<Tensor>& query_matrix, const std::optional<Tensor>& key_matrix,
                     const std::optional<Tensor>& value_matrix, const std::optional<Tensor>& key_mean,
                     const std::optional<Tensor>& value_mean, std::int64_t sink) {
  const Arguments arguments("append_tokens", key);
  if (key.dim() != 3) arguments.refuse("key has " + std::to_string(key.dim()) + " dimensions, expected [N, Hkv, d]");
  const AppendLayer layer = append_layer(arguments, windows, key.size(2), query_matrix, key_matrix, value_matrix,
                                         key_mean, value_mean, std::nullopt, sink);
  arguments.get<std::int32_t>(lengths, "lengths", ScalarType::Int, {key.size(0)});
  Tensor rotated = arguments.empty({0}, ScalarType::BFloat16);
  if (query.has_value()) {
    group_of(arguments, *query, layer.windows.kv_heads);
    rotated = arguments.empty({key.size(0), query->size(1), key.size(2)}, ScalarType::BFloat16);
  }
  append_rows(arguments, layer, query.has_value() ? &*query : nullptr, key, value, window_table, lengths,
              rotated.data_ptr());
  return rotated;
}

void flush_tokens(const Tensor& pool, const Tensor& windows, const Tensor& window_table, const Tensor& table,
                  const Tensor& lengths, const Tensor& key_sigma, const Tensor& value_sigma, const Tensor& key_clip,
                  const Tensor& value_clip, const Tensor& bad, std::int64_t sink, bool search,
                  const std::vector<std::int64_t>& key_code, const std::vector<std::int64_t>& value_code) {
  const Arguments arguments("flush_tokens", pool);
  const PageCode code(arguments, key_code, value_code);
  const Windows held(arguments, WindowPool(arguments, windows, code.head_dim(), sink), window_table);
  const std::int64_t batch = held.sequences, kv_heads = held.kv_heads;
  Tensor runs = arguments.empty({batch, sizeof(oscar::kernels::PageRun) / sizeof(std::int32_t)}, ScalarType::Int);
  oscar::kernels::FlushRunsParams f;
  f.lengths = arguments.get<std::int32_t>(lengths, "lengths", ScalarType::Int, {batch});
  f.page_table = arguments.get<std::int32_t>(table, "table", ScalarType::Int, {batch, kAny});
  f.runs = static_cast<oscar::kernels::PageRun*>(runs.data_ptr());
  f.batch = held.sequences, f.max_pages = arguments.int32(table.size(1), "pages of a sequence");
  f.sink = arguments.int32(sink, "sink"), f.ring_pages = held.ring_pages;

  oscar::kernels::QuantizePagesParams q{};
  q.runs = f.runs;
  q.pages = arguments.get<std::uint8_t>(pool, "pool", ScalarType::Byte, {kAny, kv_heads, code.page.bytes()});
  q.page_bytes = code.page.bytes(), q.run_count = f.batch;
  q.kv_heads = held.kv_heads, q.matrix_heads = 1;
  q.encoder = encoder_of(search);
  q.windows = held.pages, q.window_table = held.table;
  q.sink_pages = held.sink_pages, q.ring_pages = held.ring_pages;
  const auto [key, value] = both_sides(arguments, q, code, key_sigma, value_sigma, key_clip, value_clip, bad);
  oscar::kernels::StepTables step = held.step(f.lengths);
  step.table = f.page_table, step.max_pages = f.max_pages, step.pages = arguments.int32(pool.size(0), "pages");
  step.sink = f.sink, step.newest_only = true;
  check_tables(arguments, step);
  const cudaStream_t stream = arguments.stream();
  if (batch == 0) return;
  arguments.launched(oscar::kernels::flush_runs(f, stream), "flush_runs");
  arguments.launched(oscar::kernels::quantize_pages(key, stream), "quantize_pages of keys");
  arguments.launched(oscar::kernels::quantize_pages(value, stream), "quantize_pages of values");
}

STABLE_TORCH_LIBRARY_IMPL(oscar_kv, CUDA, m) {
  m.impl("append_tokens", TORCH_BOX(&append_tokens));
  m.impl("flush_tokens", TORCH_BOX(&flush_tokens));
}

}  // namespace oscar_kv
