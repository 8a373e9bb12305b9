// Operators for chunks of a prompt: read stored tokens back as rows of the model, write new rows to the cache, and
// merge two parts of a softmax.
#include <tuple>

#include "kernels/chunks/merge_outputs.h"
#include "kernels/chunks/past_rows.h"
#include "oscar_kv/csrc/layers.h"

namespace oscar_kv {
namespace {

using oscar::kernels::NewRun;
using oscar::kernels::PastTile;
constexpr std::int64_t kTileNumbers = sizeof(PastTile) / sizeof(std::int32_t);
constexpr std::int64_t kRunNumbers = sizeof(NewRun) / sizeof(std::int32_t);
static_assert(kTileNumbers == 6 && kRunNumbers == 6, "TILE and NEW_RUN of python/oscar_kv/ops/tables.py list them");

// Matrices of the keys or of the values as the sum of two BF16 terms: [1 or Hkv, 2, d, d].
const std::uint16_t* terms(const Arguments& arguments, const Tensor& tensor, const char* name, std::int64_t kv_heads,
                           std::int64_t d, std::int32_t& heads) {
  return arguments.matrices<std::uint16_t>(tensor, name, ScalarType::BFloat16, {kAny, 2, d, d}, kv_heads, heads);
}

// Rows for kernels that copy 16 bytes at a time, so they must be aligned.
const std::uint16_t* vectors(const Arguments& arguments, const Tensor& rows, const char* name, std::int64_t kv_heads,
                             std::int64_t d) {
  const void* address = arguments.rows(rows, name, rows.dim() == 3 ? rows.size(0) : kAny, kv_heads, d);
  if (rows.scalar_type() != ScalarType::BFloat16 || rows.stride(0) % 8 != 0 ||
      reinterpret_cast<std::uintptr_t>(address) % 16 != 0) {
    arguments.refuse(std::string(name) + " is not BFloat16 with rows aligned to 16 bytes; pass a contiguous copy");
  }
  return static_cast<const std::uint16_t*>(address);
}

}  // namespace

void past_rows(const Tensor& pool, const Tensor& windows, const Tensor& tiles, const Tensor& key, const Tensor& value,
               const Tensor& key_matrix, const Tensor& value_matrix, const std::optional<Tensor>& key_mean,
               const std::optional<Tensor>& value_mean, const std::optional<Tensor>& phases, const Tensor& key_sigma,
               const Tensor& value_sigma, const Tensor& key_out, const Tensor& value_out,
               const std::vector<std::int64_t>& key_code, const std::vector<std::int64_t>& value_code) {
  const Arguments arguments("past_rows", pool);
  const Codes codes{key_sigma, value_sigma, key_code, value_code};
  const PageCode code = codes.page(arguments);
  const std::int64_t d = code.head_dim();
  oscar::kernels::PastRowsParams k{};
  k.pages = arguments.get<std::uint8_t>(pool, "pool", ScalarType::Byte, {kAny, kAny, code.page.bytes()});
  const std::int64_t kv_heads = pool.size(1);
  k.windows = windows_of(arguments, windows, kv_heads, d);
  k.tiles = arguments.get<PastTile>(tiles, "tiles", ScalarType::Int, {kAny, kTileNumbers});
  k.page_bytes = code.page.bytes(), k.tile_count = arguments.int32(tiles.size(0), "tiles");
  k.kv_heads = arguments.int32(kv_heads, "KV heads");
  auto v = k;
  k.layout = code.page.key, v.layout = code.page.value, v.value_side = true;
  k.rows = vectors(arguments, key, "key", kv_heads, d), k.row_stride = key.stride(0);
  v.rows = vectors(arguments, value, "value", kv_heads, d), v.row_stride = value.stride(0);
  k.matrix = terms(arguments, key_matrix, "key_matrix", kv_heads, d, k.matrix_heads);
  v.matrix = terms(arguments, value_matrix, "value_matrix", kv_heads, d, v.matrix_heads);
  Means{key_mean, value_mean, phases}.put(arguments, kv_heads, d, k.mean, v.mean, k.rope_phases);
  codes.put(arguments, k, v, kv_heads);
  k.out = arguments.get<std::uint16_t>(key_out, "key_out", ScalarType::BFloat16, {kAny, kv_heads, d});
  v.out = arguments.get<std::uint16_t>(value_out, "value_out", ScalarType::BFloat16, {kAny, kv_heads, d});
  const cudaStream_t stream = arguments.stream();
  arguments.launched(oscar::kernels::past_rows(k, stream), "past_rows of keys");
  arguments.launched(oscar::kernels::past_rows(v, stream), "past_rows of values");
}

NewRowsLayer new_rows_layer(const Arguments& arguments, const Tensor& pool, const Tensor& windows,
                            const Tensor& key_matrix, const Tensor& value_matrix, const Means& means,
                            const Writing& writing) {
  const WrittenPages pages(arguments, pool, writing);
  const std::int64_t d = pages.code.head_dim(), kv_heads = pages.kv_heads;
  NewRowsLayer layer{};
  oscar::kernels::NewRowsParams &k = layer.key, &v = layer.value;
  k.side = pages.key, v.side = pages.value;
  means.put(arguments, kv_heads, d, k.side.mean, v.side.mean, k.side.rope_phases);
  k.matrix = terms(arguments, key_matrix, "key_matrix", kv_heads, d, k.matrix_heads);
  v.matrix = terms(arguments, value_matrix, "value_matrix", kv_heads, d, v.matrix_heads);
  k.windows = v.windows = windows_of(arguments, windows, kv_heads, d);
  return layer;
}

void launch_new_rows(const Arguments& arguments, NewRowsLayer layer, const Tensor& key, const Tensor& value,
                     const Tensor& runs) {
  oscar::kernels::NewRowsParams &k = layer.key, &v = layer.value;
  if (value.scalar_type() != key.scalar_type()) arguments.refuse("key and value have different types");
  const std::int64_t tokens = key.dim() == 3 ? key.size(0) : kAny, d = k.side.layout.head_dim;
  for (const auto& [side, rows, name] : {std::tuple(&k, &key, "key"), std::tuple(&v, &value, "value")}) {
    side->side.rows = arguments.rows(*rows, name, tokens, side->side.kv_heads, d);
    side->side.rows_bfloat16 = rows->scalar_type() == ScalarType::BFloat16;
    side->row_stride = rows->stride(0);
    side->vectors = reinterpret_cast<std::uintptr_t>(side->side.rows) % 16 == 0 && side->row_stride % 8 == 0;
    side->runs = arguments.get<NewRun>(runs, "runs", ScalarType::Int, {kAny, kRunNumbers});
    side->run_count = arguments.int32(runs.size(0), "runs");
  }
  arguments.launched(oscar::kernels::new_rows(k, v, arguments.stream()), "new_rows");
}

void new_rows(const Tensor& pool, const Tensor& windows, const Tensor& key, const Tensor& value, const Tensor& runs,
              const Tensor& key_matrix, const Tensor& value_matrix, const std::optional<Tensor>& key_mean,
              const std::optional<Tensor>& value_mean, const std::optional<Tensor>& phases, const Tensor& key_sigma,
              const Tensor& value_sigma, const Tensor& key_clip, const Tensor& value_clip, const Tensor& bad,
              bool search, const std::vector<std::int64_t>& key_code, const std::vector<std::int64_t>& value_code) {
  const Arguments arguments("new_rows", pool);
  const Writing writing{{key_sigma, value_sigma, key_code, value_code}, key_clip, value_clip, bad, search};
  launch_new_rows(
      arguments,
      new_rows_layer(arguments, pool, windows, key_matrix, value_matrix, {key_mean, value_mean, phases}, writing), key,
      value, runs);
}

void merge_outputs(const Tensor& out, const Tensor& lse, const Tensor& part, const Tensor& part_lse) {
  const Arguments arguments("merge_outputs", out);
  if (part.dim() != 3) arguments.refuse("part has " + std::to_string(part.dim()) + " dimensions, expected [N, H, d]");
  const std::int64_t rows = part.size(0), heads = part.size(1), d = part.size(2);
  oscar::kernels::MergeOutputsParams p{};
  arguments.rows(out, "out", rows, heads, d);
  p.out = const_cast<std::uint16_t*>(vectors(arguments, out, "out", heads, d)), p.out_stride = out.stride(0);
  p.part = arguments.get<std::uint16_t>(part, "part", ScalarType::BFloat16, {rows, heads, d});
  p.lse = arguments.get<float>(lse, "lse", ScalarType::Float, {heads, rows});
  p.part_lse = arguments.get<float>(part_lse, "part_lse", ScalarType::Float, {heads, rows});
  p.rows = arguments.int32(rows, "rows"), p.heads = arguments.int32(heads, "heads");
  p.head_dim = arguments.int32(d, "head_dim");
  arguments.launched(oscar::kernels::merge_outputs(p, arguments.stream()), "merge_outputs");
}

STABLE_TORCH_LIBRARY_IMPL(oscar_kv, CUDA, m) {
  m.impl("past_rows", TORCH_BOX(&past_rows));
  m.impl("new_rows", TORCH_BOX(&new_rows));
  m.impl("merge_outputs", TORCH_BOX(&merge_outputs));
}

}  // namespace oscar_kv
