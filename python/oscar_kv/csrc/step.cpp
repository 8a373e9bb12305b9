// What a pass of an engine does in a layer besides attention inside chunks: tokens of decode steps enter the cache and
// attend, and the rows of chunks enter it.
#include <cstring>
#include <type_traits>

#include "kernels/decode/model_outputs.h"
#include "oscar_kv/csrc/layers.h"

namespace oscar_kv {
namespace {

// What describe_pass() writes for layer_pass().
struct PassLayer {
  std::int64_t mark;
  std::int64_t sink;
  oscar::kernels::AppendTokensParams append;
  DecodeLayer decode;
  oscar::kernels::ModelOutputsParams outputs;
  NewRowsLayer rows;
};
static_assert(std::is_trivially_copyable_v<PassLayer>);
constexpr std::int64_t kPassBytes = 2048;  // PASS_BYTES of python/oscar_kv/ops/operators.py
constexpr std::int64_t kMark = 0x6f736361724b5631;
static_assert(sizeof(PassLayer) <= kPassBytes);

// The first lengths.size(0) rows of output, query, key and value.
void run_step(const Arguments& arguments, const PassLayer& layer, const Tensor& output, const Tensor& query,
              const Tensor& key, const Tensor& value, const Tensor& table, const Tensor& window_table,
              const Tensor& lengths) {
  DecodeLayer decode = layer.decode;
  oscar::kernels::ModelOutputsParams p = layer.outputs;
  const std::int64_t d = p.head_dim, group = group_of(arguments, query, p.kv_heads), heads = query.size(1);
  const Sequences sequences(arguments, lengths, window_table, layer.sink);
  const std::int64_t batch = sequences.count, numbers = batch * heads * d;
  if (output.scalar_type() != ScalarType::BFloat16) arguments.refuse("output is not BFloat16");
  p.out = static_cast<std::uint16_t*>(const_cast<void*>(arguments.rows(output, "output", kAny, heads, d)));
  if (output.size(0) < batch) {
    arguments.refuse("output has " + std::to_string(output.size(0)) + " rows for " + std::to_string(batch) +
                     " sequences");
  }
  // Rows of the cache's basis FP32 [B, Hq, d], then queries BF16.
  const Tensor scratch = arguments.empty({numbers * 6}, ScalarType::Byte);
  float* rows = static_cast<float*>(scratch.data_ptr());
  append_rows(arguments, layer.append, sequences, &query, key, value, rows + numbers);
  if (batch == 0) return;
  decode.params.q = rows + numbers;
  if (decode.params.rope_phases != nullptr) {  // page queries are computed of the model's, beside the append
    if (query.scalar_type() != ScalarType::BFloat16 || query.stride(0) % 4 != 0 ||
        reinterpret_cast<std::uintptr_t>(query.data_ptr()) % 8 != 0) {
      arguments.refuse("query is not BFloat16 with rows aligned to 8 bytes; pass a contiguous copy");
    }
    decode.params.model_query = query.data_ptr(), decode.params.model_query_stride = query.stride(0);
    decode.params.key_mean = layer.append.key_mean;
  }
  launch_decode(arguments, decode, sequences, group, table, rows, nullptr);
  p.rows = rows, p.out_stride = output.stride(0), p.lengths = sequences.lengths;
  p.batch = sequences.count, p.query_heads = arguments.int32(heads, "query heads");
  arguments.launched(oscar::kernels::model_outputs(p, arguments.stream()), "model_outputs");
}

}  // namespace

// On the host: writes what layer_pass() reads instead of the arguments that stay the same from pass to pass.
void describe_pass(const Tensor& state, const Tensor& pool, const Tensor& windows, const Tensor& query_matrix,
                   const Tensor& key_matrix, const Tensor& value_matrix, const Tensor& output_matrix,
                   const Tensor& key_terms, const Tensor& value_terms, const std::optional<Tensor>& key_mean,
                   const std::optional<Tensor>& value_mean, const std::optional<Tensor>& phases,
                   const std::optional<Tensor>& tile_phases, const Tensor& key_sigma, const Tensor& value_sigma,
                   const Tensor& key_clip, const Tensor& value_clip, const Tensor& bad, const Tensor& workspace,
                   double scale, std::int64_t sink, std::int64_t recent, bool search,
                   const std::vector<std::int64_t>& key_code, const std::vector<std::int64_t>& value_code) {
  const Arguments arguments("describe_pass", pool);
  const Codes codes{key_sigma, value_sigma, key_code, value_code};
  const Means means{key_mean, value_mean, phases};
  PassLayer layer{kMark, sink};
  layer.decode = decode_layer(arguments, pool, windows, codes, phases, tile_phases, workspace, scale, recent, 0);
  const std::int64_t d = layer.decode.params.head_dim, kv_heads = layer.decode.params.kv_heads;
  layer.append = append_layer(arguments, windows, d, query_matrix, key_matrix, value_matrix, means);
  layer.outputs.matrix = arguments.matrices<float>(output_matrix, "output_matrix", ScalarType::Float, {kAny, d, d},
                                                   kv_heads, layer.outputs.matrix_heads);
  layer.outputs.mean = layer.append.value_mean;
  layer.outputs.kv_heads = layer.decode.params.kv_heads, layer.outputs.head_dim = layer.decode.params.head_dim;
  layer.rows = new_rows_layer(arguments, pool, windows, key_terms, value_terms, means,
                              {codes, key_clip, value_clip, bad, search});
  std::memcpy(arguments.host_bytes(state, "state", {kPassBytes}), &layer, sizeof layer);
}

void layer_pass(const Tensor& output, const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& state,
                const std::optional<Tensor>& table, const std::optional<Tensor>& window_table,
                const std::optional<Tensor>& lengths, const std::optional<Tensor>& runs) {
  const Arguments arguments("layer_pass", query);
  const auto* layer = reinterpret_cast<const PassLayer*>(arguments.host_bytes(state, "state", {kPassBytes}));
  if (layer->mark != kMark) arguments.refuse("state was not written by describe_pass");
  if (runs.has_value()) launch_new_rows(arguments, layer->rows, key, value, *runs);
  if (!lengths.has_value()) return;
  if (!table.has_value() || !window_table.has_value()) arguments.refuse("lengths came without table and window_table");
  run_step(arguments, *layer, output, query, key, value, *table, *window_table, *lengths);
}

STABLE_TORCH_LIBRARY_IMPL(oscar_kv, CUDA, m) {
  m.impl("describe_pass", TORCH_BOX(&describe_pass));
  m.impl("layer_pass", TORCH_BOX(&layer_pass));
}

}  // namespace oscar_kv
