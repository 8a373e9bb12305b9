// Attention over the cache on a GPU.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>

#include "attention/cuda/cuda_backend.h"
#include "base/errors.h"
#include "cache/row_pages.h"
#include "kernels/common/fragment_pages.h"
#include "kernels/decode/page_queries.h"
#include "layout/kernel_limits.h"

namespace oscar {
namespace {

std::vector<PageLayout> layouts_of(const KvMethod& method, const ModelConfig& model) {
  std::vector<PageLayout> layouts;
  for (std::int64_t l = 0; l < model.kv_layers(); ++l) {
    layouts.push_back(page_layout(method.code(l, Side::kKey), method.code(l, Side::kValue)));
  }
  return layouts;
}

DeviceCacheShape shape_of(const KvMethod& method, const ModelConfig& model, const std::vector<PageLayout>& layouts) {
  DeviceCacheShape shape{model.kv_layers(), model.kv_heads, model.head_dim, method.quantized, method.windows, {}, 0};
  for (const PageLayout& layout : layouts) shape.page_bytes.push_back(layout.bytes());
  shape.window_page_bytes = kernels::window_page_bytes(static_cast<int>(model.head_dim));
  return shape;
}

}  // namespace

CudaBackend::CudaBackend(const KvMethod& method, const ModelConfig& model, at::Device device)
    : method_(method),
      model_(model),
      device_(device),
      layouts_(layouts_of(method, model)),
      cache_(shape_of(method, model, layouts_), device),
      phases_(method.rope_phases, device),
      tables_(device),
      layers_(static_cast<std::size_t>(model.kv_layers())),
      finite_(model.kv_layers(), model.kv_heads, device) {}

const CudaBackend::DeviceLayer& CudaBackend::layer(std::int64_t index) {
  DeviceLayer& l = layers_[static_cast<std::size_t>(index)];
  if (!l.ready) {
    l = {device_side(method_, model_.kv_heads, index, Side::kKey, device_),
         device_side(method_, model_.kv_heads, index, Side::kValue, device_), true};
  }
  return l;
}

void* CudaBackend::workspace(const kernels::PagedDecodeParams& p, bool positions) {
  const int queries = positions ? kernels::page_queries(p.max_pages, p.sink_pages + p.ring_pages) : 0;
  const std::size_t bytes =
      kernels::decode_attention_workspace_bytes(p.head_dim, p.query_heads / p.kv_heads, p.batch, p.kv_heads, queries);
  if (!workspace_.defined() || workspace_.nbytes() < bytes) {
    // Page queries grow with the sequences: allocate rarely, and more than one page at a time.
    const std::size_t room = positions ? bytes + bytes / 2 : bytes;
    workspace_ = at::Tensor();
    workspace_ = at::zeros({static_cast<std::int64_t>(room)}, at::TensorOptions(at::kByte).device(device_));
  }
  return workspace_.data_ptr();
}

CudaBackend::Step CudaBackend::append_step(std::int64_t layer, const std::vector<StepToken>& tokens,
                                           const BegunStep& rows, StepQueries& query) {
  Step step{};
  std::vector<AppendJob> jobs;
  std::vector<PageRun> runs;
  for (const StepToken& token : tokens) {
    DeviceCache::Sequence& held = cache_.reserve(layer, token.id, token.position + 1);
    held.tokens[static_cast<std::size_t>(layer)] = token.position + 1;
    const auto index = static_cast<std::int32_t>(step.ids.size());
    step.ids.push_back(token.id);
    jobs.push_back({static_cast<std::int32_t>(token.row), index, static_cast<std::int32_t>(token.position)});
    if (!method_.quantized) continue;
    add_ring_runs(held, index, method_.windows.quantized_end(token.position),
                  method_.windows.quantized_end(token.position + 1), runs);
  }
  tables_.clear();
  step.tables = add_sequences(step.ids, layer);
  const std::size_t jobs_at = tables_.add(words(jobs)), runs_at = tables_.add(words(runs));
  tables_.upload();
  write_windows(layer, rows.q, rows.keys, rows.values, std::ssize(jobs), jobs_at, step.tables, &query);
  quantize(layer, rows.keys, rows.values, std::ssize(runs), runs_at, step.tables, true);
  return step;
}

void CudaBackend::attend_step(const AttentionInput& input, const Step& step, const StepQueries& queries,
                              const at::Tensor& sinks, at::Tensor& out) {
  const at::Tensor& query = queries.rotated;
  const DeviceLayer& l = layer(input.layer);
  const Common& tables = step.tables;
  const auto batch = std::ssize(step.ids);
  const std::int64_t heads = query.size(1), kv_heads = model_.kv_heads;
  kernels::PagedDecodeParams p{};
  p.q = query.const_data_ptr(), p.out = out.data_ptr();
  p.pages = cache_.pages(input.layer), p.window_pages = cache_.windows(input.layer);
  p.page_table = tables_.at(tables.page_table), p.window_table = tables_.at(tables.window_table);
  p.lengths = tables_.at(tables.lengths);
  p.sink_logits = pointer<float>(sinks);
  p.batch = static_cast<std::int32_t>(batch), p.query_heads = static_cast<std::int32_t>(heads);
  p.kv_heads = static_cast<std::int32_t>(kv_heads), p.head_dim = static_cast<std::int32_t>(query.size(2));
  p.max_pages = static_cast<std::int32_t>(tables.max_pages);
  p.sink_pages = static_cast<std::int32_t>(tables.sink_pages);
  p.ring_pages = static_cast<std::int32_t>(cache_.ring_pages());
  p.sink = method_.quantized ? std::min(static_cast<std::int32_t>(method_.windows.sink), p.sink_pages * kPageTokens)
                             : p.sink_pages * kPageTokens;
  p.recent = method_.quantized ? static_cast<std::int32_t>(method_.windows.recent) : 1;
  p.flush = method_.quantized ? static_cast<std::int32_t>(method_.windows.flush) : 1;
  p.sliding_window = static_cast<std::int32_t>(input.sliding_window);
  p.chunk = static_cast<std::int32_t>(input.chunk);
  p.scale = static_cast<float>(input.scale), p.soft_cap = static_cast<float>(input.soft_cap);
  p.out_float = true;
  const RowCode &key_code = method_.code(input.layer, Side::kKey),
                &value_code = method_.code(input.layer, Side::kValue);
  // Without codes both layouts are the same, and only one has all head sizes.
  p.blocks = key_code.layout == Layout::kBlocks || (!method_.quantized && p.head_dim > kMostHeadScaleHead);
  std::copy(key_code.widths.begin(), key_code.widths.end(), p.key_widths);
  std::copy(value_code.widths.begin(), value_code.widths.end(), p.value_widths);
  p.key_sigma = pointer<float>(l.key.sigma), p.value_sigma = pointer<float>(l.value.sigma);
  if (l.key.rotated_mean) {
    p.position_query = pointer<float>(queries.positions);
    p.rope_phases = phases_.rows(tables.longest), p.tile_phases = phases_.tile();
  }
  p.workspace = workspace(p, l.key.rotated_mean);
  check_launch(kernels::decode_attention(p, current_stream()), "decode_attention");
}

at::Tensor CudaBackend::attend(const AttentionInput& input) {
  const c10::DeviceGuard guard(device_);
  BegunStep begun = begin_step(method_, input, device_, Rotation::kInKernels,
                               [&](std::int64_t id) { return tokens(input.layer, id); });
  at::Tensor& out = begun.output;
  const std::int64_t heads = begun.q.size(1), d = begun.q.size(2);
  const DeviceLayer& l = layer(input.layer);
  const auto options = out.options();
  const std::int64_t sequences = std::ssize(input.batch->lengths);
  StepQueries query{at::empty({sequences, heads, d}, options.dtype(at::kBFloat16)),
                    l.key.rotated_mean ? at::empty({sequences, heads, d}, options) : at::Tensor()};
  std::int64_t steps = 0;
  for_each_step(*input.batch, [&](const std::vector<StepToken>& tokens) {
    ++steps;
    const Step step = append_step(input.layer, tokens, begun, query);
    const auto count = std::ssize(tokens);
    const std::int64_t first = tokens.front().row;
    bool in_order = true;  // true if the rows of this step follow one another
    for (std::int64_t i = 0; i < count; ++i)
      in_order = in_order && tokens[static_cast<std::size_t>(i)].row == first + i;
    at::Tensor step_out = in_order ? out.narrow(0, first, count) : at::empty({count, heads, d}, options);
    attend_step(input, step, query, begun.sinks, step_out);
    if (in_order) return;
    std::vector<std::int64_t> to;
    for (const StepToken& token : tokens) to.push_back(token.row);
    out.index_copy_(0, at::tensor(to, at::kLong).to(device_), step_out);
  });
  if (method_.quantized && (steps > 1 || input.layer == model_.kv_layers() - 1)) finite_.check(0, input.layer);
  return restore_outputs_on_device(out, l.value).to(input.q.options());
}

StoredPages CudaBackend::stored(std::int64_t layer, std::int64_t sequence, Side) const {
  const DeviceCache::Sequence* s = cache_.find(sequence);
  StoredPages out;
  if (s == nullptr || !method_.quantized) return out;
  const CacheWindows& w = method_.windows;
  out.tokens = w.quantized_end(s->tokens[static_cast<std::size_t>(layer)]) - w.sink;
  const std::int64_t count = (out.tokens + kPageTokens - 1) / kPageTokens;
  if (count == 0) return out;
  const std::vector<std::int64_t> ids(s->pages.begin(), s->pages.begin() + count);
  const at::Tensor pages =
      cache_.page_pool(layer).index_select(0, at::tensor(ids, at::kLong).to(device_)).to(at::kCPU).contiguous();
  const std::uint8_t* bytes = pages.const_data_ptr<std::uint8_t>();
  out.pages.assign(bytes, bytes + pages.nbytes());
  return out;
}

std::unique_ptr<PagedBackend> make_cuda_backend(const KvMethod& method, const ModelConfig& model, at::Device device) {
  if (!fast_kernel_fault(method, model).empty()) return make_cpu_backend(method, model);
  return std::make_unique<CudaBackend>(method, model, device);
}

}  // namespace oscar
