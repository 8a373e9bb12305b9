// Rows of a prompt into pages, and pages back into rows.
#include "kernels/dequantize/dequantize_pages.h"

#include <tuple>

#include "oscar_kv/csrc/codes.h"

namespace oscar_kv {

using oscar::kernels::PageRun;
constexpr std::int64_t kRunNumbers = sizeof(PageRun) / sizeof(std::int32_t);
static_assert(kRunNumbers == 5, "RUN of python/oscar_kv/ops/tables.py lists the numbers of a PageRun");

void quantize_rows(const Tensor& pool, const Tensor& key, const Tensor& value, const Tensor& runs,
                   const Tensor& key_sigma, const Tensor& value_sigma, const Tensor& key_clip, const Tensor& value_clip,
                   const Tensor& bad, bool search, const std::vector<std::int64_t>& key_code,
                   const std::vector<std::int64_t>& value_code) {
  const Arguments arguments("quantize_rows", pool);
  WrittenPages pages(arguments, pool,
                     {{key_sigma, value_sigma, key_code, value_code}, key_clip, value_clip, bad, search});
  const std::int64_t d = pages.code.head_dim();
  for (oscar::kernels::QuantizePagesParams* q : {&pages.key, &pages.value}) {
    q->runs = arguments.get<PageRun>(runs, "runs", ScalarType::Int, {kAny, kRunNumbers});
    q->run_count = arguments.int32(runs.size(0), "runs"), q->rows_bfloat16 = true;
  }
  pages.key.rows = arguments.address(key, "key", ScalarType::BFloat16, {kAny, pages.kv_heads, d});
  pages.value.rows = arguments.address(value, "value", ScalarType::BFloat16, {key.size(0), pages.kv_heads, d});
  const cudaStream_t stream = arguments.stream();
  arguments.launched(oscar::kernels::quantize_pages(pages.key, stream), "quantize_pages of keys");
  arguments.launched(oscar::kernels::quantize_pages(pages.value, stream), "quantize_pages of values");
}

std::tuple<Tensor, Tensor> dequantize_pages(const Tensor& pool, const Tensor& runs, const Tensor& key_sigma,
                                            const Tensor& value_sigma, const std::vector<std::int64_t>& key_code,
                                            const std::vector<std::int64_t>& value_code) {
  const Arguments arguments("dequantize_pages", pool);
  const Codes codes{key_sigma, value_sigma, key_code, value_code};
  const PageCode code = codes.page(arguments);
  const std::int64_t d = code.head_dim();
  oscar::kernels::DequantizePagesParams k{};
  k.pages = arguments.get<std::uint8_t>(pool, "pool", ScalarType::Byte, {kAny, kAny, code.page.bytes()});
  const std::int64_t kv_heads = pool.size(1);
  k.runs = arguments.get<PageRun>(runs, "runs", ScalarType::Int, {kAny, kRunNumbers});
  const std::int64_t rows = runs.size(0) * oscar::kPageTokens;
  k.run_count = arguments.int32(runs.size(0), "runs"), k.kv_heads = arguments.int32(kv_heads, "KV heads");
  k.page_bytes = code.page.bytes();
  auto v = k;
  codes.put(arguments, k, v, kv_heads);
  const Tensor key = arguments.empty({rows, kv_heads, d}, ScalarType::Float),
               value = arguments.empty({rows, kv_heads, d}, ScalarType::Float);
  k.rows = key.data_ptr(), k.layout = code.page.key;
  v.rows = value.data_ptr(), v.layout = code.page.value, v.value_side = true;
  const cudaStream_t stream = arguments.stream();
  arguments.launched(oscar::kernels::dequantize_pages(k, stream), "dequantize_pages of keys");
  arguments.launched(oscar::kernels::dequantize_pages(v, stream), "dequantize_pages of values");
  return {key, value};
}

STABLE_TORCH_LIBRARY_IMPL(oscar_kv, CUDA, m) {
  m.impl("quantize_rows", TORCH_BOX(&quantize_rows));
  m.impl("dequantize_pages", TORCH_BOX(&dequantize_pages));
}

}  // namespace oscar_kv
