// Rows of a prompt into pages, and pages back into rows.
#include "kernels/dequantize/dequantize_pages.h"
#include "kernels/quantize/quantize_pages.h"

#include <tuple>

#include "oscar_kv/csrc/codes.h"
#include "oscar_kv/csrc/table_check.h"

namespace oscar_kv {

using oscar::kernels::PageRun;
using oscar::kernels::RunTables;
constexpr std::int64_t kRunNumbers = sizeof(PageRun) / sizeof(std::int32_t);
static_assert(kRunNumbers == 5, "RUN of python/oscar_kv/ops/tables.py lists the numbers of a PageRun");

void quantize_rows(const Tensor& pool, const Tensor& key, const Tensor& value, const Tensor& runs,
                   const Tensor& key_sigma, const Tensor& value_sigma, const Tensor& key_clip, const Tensor& value_clip,
                   const Tensor& bad, bool search, const std::vector<std::int64_t>& key_code,
                   const std::vector<std::int64_t>& value_code) {
  const Arguments arguments("quantize_rows", pool);
  const PageCode code(arguments, key_code, value_code);
  const std::int64_t d = code.head_dim();
  oscar::kernels::QuantizePagesParams q{};
  q.pages = arguments.get<std::uint8_t>(pool, "pool", ScalarType::Byte, {kAny, kAny, code.page.bytes()});
  const std::int64_t kv_heads = pool.size(1);
  q.runs = arguments.get<PageRun>(runs, "runs", ScalarType::Int, {kAny, kRunNumbers});
  q.page_bytes = code.page.bytes(), q.run_count = arguments.int32(runs.size(0), "runs");
  q.kv_heads = arguments.int32(kv_heads, "KV heads"), q.matrix_heads = 1;
  q.encoder = encoder_of(search);
  q.rows_bfloat16 = true;
  auto [k, v] = both_sides(arguments, q, code, key_sigma, value_sigma, key_clip, value_clip, bad);
  k.rows = arguments.address(key, "key", ScalarType::BFloat16, {kAny, kv_heads, d});
  v.rows = arguments.address(value, "value", ScalarType::BFloat16, {key.size(0), kv_heads, d});
  check_tables(arguments, RunTables{q.runs, key.size(0), arguments.int32(pool.size(0), "pages")}, q.run_count);
  const cudaStream_t stream = arguments.stream();
  arguments.launched(oscar::kernels::quantize_pages(k, stream), "quantize_pages of keys");
  arguments.launched(oscar::kernels::quantize_pages(v, stream), "quantize_pages of values");
}

std::tuple<Tensor, Tensor> dequantize_pages(const Tensor& pool, const Tensor& runs, const Tensor& key_sigma,
                                            const Tensor& value_sigma, const std::vector<std::int64_t>& key_code,
                                            const std::vector<std::int64_t>& value_code) {
  const Arguments arguments("dequantize_pages", pool);
  const PageCode code(arguments, key_code, value_code);
  const std::int64_t d = code.head_dim();
  oscar::kernels::DequantizePagesParams p{};
  p.pages = arguments.get<std::uint8_t>(pool, "pool", ScalarType::Byte, {kAny, kAny, code.page.bytes()});
  const std::int64_t kv_heads = pool.size(1), rows = runs.size(0) * oscar::kPageTokens;
  p.runs = arguments.get<PageRun>(runs, "runs", ScalarType::Int, {kAny, kRunNumbers});
  p.run_count = arguments.int32(runs.size(0), "runs"), p.kv_heads = arguments.int32(kv_heads, "KV heads");
  p.page_bytes = code.page.bytes();
  Tensor key = arguments.empty({rows, kv_heads, d}, ScalarType::Float),
         value = arguments.empty({rows, kv_heads, d}, ScalarType::Float);
  check_tables(arguments, RunTables{p.runs, -1, arguments.int32(pool.size(0), "pages")}, p.run_count);
  const cudaStream_t stream = arguments.stream();
  p.rows = key.data_ptr(), p.layout = code.page.key;
  p.sigma = arguments.get<float>(key_sigma, "key_sigma", ScalarType::Float, {kv_heads, 4});
  arguments.launched(oscar::kernels::dequantize_pages(p, stream), "dequantize_pages of keys");
  p.rows = value.data_ptr(), p.layout = code.page.value, p.value_side = true;
  p.sigma = arguments.get<float>(value_sigma, "value_sigma", ScalarType::Float, {kv_heads, 4});
  arguments.launched(oscar::kernels::dequantize_pages(p, stream), "dequantize_pages of values");
  return {key, value};
}

STABLE_TORCH_LIBRARY_IMPL(oscar_kv, CUDA, m) {
  m.impl("quantize_rows", TORCH_BOX(&quantize_rows));
  m.impl("dequantize_pages", TORCH_BOX(&dequantize_pages));
}

}  // namespace oscar_kv
