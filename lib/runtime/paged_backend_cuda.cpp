// The decode path on a GPU: append_tokens, quantize_pages and decode_attention on a DeviceCache, on LibTorch's current
// stream. CPU twin: paged_backend_cpu.cpp.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <climits>
#include <cstring>

#include "base/errors.h"
#include "kernels/append_tokens.h"
#include "kernels/common/page_layout.h"
#include "kernels/decode_attention_cuda.h"
#include "kernels/quantize_pages.h"
#include "runtime/device_cache.h"
#include "runtime/device_transform.h"
#include "runtime/page_codec.h"
#include "runtime/paged_backend.h"

namespace oscar {
namespace {

using kernels::AppendJob;
using kernels::PageRun;
static_assert(sizeof(AppendJob) == 12 && sizeof(PageRun) == 16);

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw EnvironmentError(std::string("the GPU failed in ") + what + " (" + cudaGetErrorString(error) +
                         "); pass --device cpu");
}

cudaStream_t stream() { return c10::cuda::getCurrentCUDAStream().stream(); }

template <class T>
std::vector<std::int32_t> words(const std::vector<T>& items) {
  std::vector<std::int32_t> out(items.size() * sizeof(T) / 4);
  if (!items.empty()) std::memcpy(out.data(), items.data(), out.size() * 4);
  return out;
}

template <class T>
const T* pointer(const at::Tensor& x) {
  return x.defined() ? x.const_data_ptr<T>() : nullptr;
}

struct DeviceLayer {
  DeviceSide key, value;
  bool ready = false;
};

// Calls f(first position, count, page, slot) for the parts of [begin, end) in one page each.
template <class F>
void for_each_page(std::int64_t sink, std::int64_t begin, std::int64_t end, const std::vector<std::int32_t>& pages,
                   F&& f) {
  while (begin < end) {
    const std::int64_t body = begin - sink, slot = body % kPageTokens;
    const std::int64_t count = std::min(end - begin, kPageTokens - slot);
    f(begin, static_cast<std::int32_t>(count), pages[static_cast<std::size_t>(body / kPageTokens)],
      static_cast<std::int32_t>(slot));
    begin += count;
  }
}

class CudaBackend : public PagedBackend {
 public:
  CudaBackend(const KvMethod& method, const ModelConfig& model, at::Device device)
      : method_(method),
        model_(model),
        device_(device),
        layouts_(layouts_of(method, model)),
        cache_(shape_of(method, model, layouts_), device),
        tables_(device),
        layers_(static_cast<std::size_t>(model.layers)) {
    bad_ = at::full({model.layers, 2}, INT_MAX, at::TensorOptions(at::kInt).device(device));
  }

  at::Tensor attend(const AttentionInput& input) override;
  void append(const AttentionInput& input) override;
  void release(std::int64_t sequence) override { cache_.release(sequence); }
  std::int64_t tokens(std::int64_t layer, std::int64_t sequence) const override {
    const DeviceCache::Sequence* s = cache_.find(sequence);
    return s == nullptr ? 0 : s->tokens[static_cast<std::size_t>(layer)];
  }
  StoredPages stored(std::int64_t layer, std::int64_t sequence) const override;
  std::uint64_t allocated_bytes() const override { return cache_.allocated_bytes(); }

 private:
  static std::vector<PageLayout> layouts_of(const KvMethod& method, const ModelConfig& model) {
    std::vector<PageLayout> layouts;
    for (std::int64_t l = 0; l < model.layers; ++l) {
      layouts.push_back(page_layout(method.code(l, Side::kKey), method.code(l, Side::kValue)));
    }
    return layouts;
  }
  static DeviceCacheShape shape_of(const KvMethod& method, const ModelConfig& model,
                                   const std::vector<PageLayout>& layouts) {
    DeviceCacheShape shape{model.layers, model.kv_heads, model.head_dim, method.quantised, method.windows, {}, 0};
    for (const PageLayout& layout : layouts) shape.page_bytes.push_back(layout.bytes());
    shape.window_page_bytes = kernels::window_page_bytes(static_cast<int>(model.head_dim));
    return shape;
  }
  const PageLayout& layout(std::int64_t layer) const { return layouts_[static_cast<std::size_t>(layer)]; }
  const DeviceLayer& layer(std::int64_t index);
  at::Tensor rows(const at::Tensor& x) const {  // as the kernels read them
    return (x.scalar_type() == at::kBFloat16 ? x.to(device_) : x.to(device_, at::kFloat)).contiguous();
  }
  // Sections of the tables that every launch needs.
  struct Common {
    std::size_t page_table, window_table, lengths;
    std::int64_t max_pages, sink_pages;
  };
  void add_ring_runs(const DeviceCache::Sequence& held, std::int32_t index, std::int64_t begin, std::int64_t end,
                     std::vector<PageRun>& runs) const;
  Common add_sequences(const std::vector<std::int64_t>& ids, std::int64_t layer);
  void write_windows(std::int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     std::int64_t jobs, std::size_t jobs_at, const Common& common, at::Tensor* query);
  void quantise(std::int64_t layer, const at::Tensor& k, const at::Tensor& v, std::int64_t runs, std::size_t runs_at,
                const Common& common, bool from_ring);
  void check_finite(std::int64_t layer) const;
  void* workspace(std::int64_t batch, std::int64_t group);

  const KvMethod& method_;
  const ModelConfig& model_;
  at::Device device_;
  std::vector<PageLayout> layouts_;  // [L]
  DeviceCache cache_;
  StepTables tables_;
  std::vector<DeviceLayer> layers_;
  at::Tensor bad_;  // [L, 2] see quantize_pages.h; keys, values
  at::Tensor workspace_;
};

const DeviceLayer& CudaBackend::layer(std::int64_t index) {
  DeviceLayer& l = layers_[static_cast<std::size_t>(index)];
  if (!l.ready) {
    l = {device_side(method_, model_, index, Side::kKey, device_),
         device_side(method_, model_, index, Side::kValue, device_), true};
  }
  return l;
}

// Tokens [begin, end) of the sequence in row `index` of the tables, which are still in its ring.
void CudaBackend::add_ring_runs(const DeviceCache::Sequence& held, std::int32_t index, std::int64_t begin,
                                std::int64_t end, std::vector<PageRun>& runs) const {
  const std::int64_t ring = cache_.ring_pages() * kPageTokens;
  for_each_page(method_.windows.sink, begin, end, held.pages,
                [&](std::int64_t first, std::int32_t count, std::int32_t page, std::int32_t slot) {
                  runs.push_back({static_cast<std::int32_t>(index * ring + first % ring), count, page, slot});
                });
}

CudaBackend::Common CudaBackend::add_sequences(const std::vector<std::int64_t>& ids, std::int64_t layer) {
  Common c{0, 0, 0, 1, 0};
  const std::int64_t ring = cache_.ring_pages();
  for (const std::int64_t id : ids) {
    const DeviceCache::Sequence& s = *cache_.find(id);
    c.max_pages = std::max(c.max_pages, static_cast<std::int64_t>(s.pages.size()));
    c.sink_pages = std::max(c.sink_pages, static_cast<std::int64_t>(s.sink.size()));
  }
  std::vector<std::int32_t> pages, windows, lengths;
  for (const std::int64_t id : ids) {
    const DeviceCache::Sequence& s = *cache_.find(id);
    const auto put = [](std::vector<std::int32_t>& to, const std::vector<std::int32_t>& from, std::int64_t width) {
      to.insert(to.end(), from.begin(), from.end());
      to.resize(to.size() + static_cast<std::size_t>(width) - from.size(), 0);
    };
    put(pages, s.pages, c.max_pages);
    put(windows, s.sink, c.sink_pages);
    put(windows, s.ring, ring);
    lengths.push_back(static_cast<std::int32_t>(s.tokens[static_cast<std::size_t>(layer)]));
  }
  c.page_table = tables_.add(pages);
  c.window_table = tables_.add(windows);
  c.lengths = tables_.add(lengths);
  return c;
}

void CudaBackend::write_windows(std::int64_t index, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                std::int64_t jobs, std::size_t jobs_at, const Common& common, at::Tensor* query) {
  if (jobs == 0) return;
  const DeviceLayer& l = layer(index);
  kernels::AppendTokensParams p;
  if (q.defined()) {
    p.q = q.const_data_ptr();
    p.q_stride = q.stride(0);
    p.query = reinterpret_cast<std::uint16_t*>(query->data_ptr<at::BFloat16>());
    p.query_heads = static_cast<std::int32_t>(q.size(1));
  } else {
    p.query_heads = static_cast<std::int32_t>(k.size(1));
  }
  p.k = k.const_data_ptr(), p.v = v.const_data_ptr();
  p.k_stride = k.stride(0), p.v_stride = v.stride(0);
  p.jobs = reinterpret_cast<const AppendJob*>(tables_.at(jobs_at));
  p.query_matrix = pointer<float>(l.key.query_or_back);
  p.key_matrix = pointer<float>(l.key.forward), p.value_matrix = pointer<float>(l.value.forward);
  p.key_mean = pointer<float>(l.key.mean), p.value_mean = pointer<float>(l.value.mean);
  p.window_pages = cache_.windows(index);
  p.window_table = tables_.at(common.window_table);
  p.tokens = static_cast<std::int32_t>(jobs);
  p.kv_heads = static_cast<std::int32_t>(k.size(1)), p.head_dim = static_cast<std::int32_t>(k.size(2));
  if (l.key.forward.defined()) p.matrix_heads = static_cast<std::int32_t>(l.key.forward.size(0));
  if (l.value.forward.defined()) p.value_matrix_heads = static_cast<std::int32_t>(l.value.forward.size(0));
  p.sink_pages = static_cast<std::int32_t>(common.sink_pages);
  p.sink = method_.quantised ? static_cast<std::int32_t>(method_.windows.sink) : p.sink_pages * kPageTokens;
  p.ring_pages = static_cast<std::int32_t>(cache_.ring_pages());
  p.rows_bfloat16 = k.scalar_type() == at::kBFloat16;
  check(kernels::append_tokens(p, stream()), "append_tokens");
}

void CudaBackend::quantise(std::int64_t index, const at::Tensor& k, const at::Tensor& v, std::int64_t runs,
                           std::size_t runs_at, const Common& common, bool from_ring) {
  if (runs == 0) return;
  const DeviceLayer& l = layer(index);
  for (const Side which : {Side::kKey, Side::kValue}) {
    const bool is_key = which == Side::kKey;
    const at::Tensor& x = is_key ? k : v;
    const DeviceSide& s = is_key ? l.key : l.value;
    kernels::QuantizePagesParams p{};
    p.runs = reinterpret_cast<const PageRun*>(tables_.at(runs_at));
    p.pages = cache_.pages(index);
    p.clip = s.clip.const_data_ptr<float>(), p.sigma = s.sigma.const_data_ptr<float>();
    p.bad = bad_.data_ptr<std::int32_t>() + 2 * index + (is_key ? 0 : 1);
    p.layout = is_key ? layout(index).key : layout(index).value;
    p.page_bytes = layout(index).bytes();
    p.run_count = static_cast<std::int32_t>(runs), p.kv_heads = static_cast<std::int32_t>(x.size(1));
    p.matrix_heads = 1;
    const Encoder encoder = is_key ? method_.key_encoder : method_.value_encoder;
    p.encoder = encoder == Encoder::kMinMax ? kernels::QuantizeEncoder::kMinMax : kernels::QuantizeEncoder::kSearch;
    p.value_side = !is_key;
    p.rows_bfloat16 = x.scalar_type() == at::kBFloat16;
    if (from_ring) {
      p.windows = cache_.windows(index);
      p.window_table = tables_.at(common.window_table);
      p.sink_pages = static_cast<std::int32_t>(common.sink_pages);
      p.ring_pages = static_cast<std::int32_t>(cache_.ring_pages());
    } else {
      p.rows = x.const_data_ptr();
      p.mean = pointer<float>(s.mean), p.matrix = pointer<float>(s.forward);
      if (s.forward.defined()) p.matrix_heads = static_cast<std::int32_t>(s.forward.size(0));
    }
    check(kernels::quantize_pages(p, stream()), "quantize_pages");
  }
}

void CudaBackend::check_finite(std::int64_t index) const {
  const at::Tensor bad = bad_.to(at::kCPU);
  for (std::int64_t l = 0; l <= index; ++l) {
    for (const Side which : {Side::kKey, Side::kValue}) {
      const int at = bad[l][which == Side::kKey ? 0 : 1].item<int>();
      if (at == INT_MAX) continue;
      throw NumericalError("layer " + std::to_string(l) + ", KV head " + std::to_string(at % model_.kv_heads) + ": a " +
                           (which == Side::kKey ? "key" : "value") +
                           " that leaves the recent window holds NaN or infinity");
    }
  }
}

void* CudaBackend::workspace(std::int64_t batch, std::int64_t group) {
  const std::size_t bytes =
      kernels::decode_attention_workspace_bytes(static_cast<int>(model_.head_dim), static_cast<int>(group),
                                                static_cast<int>(batch), static_cast<int>(model_.kv_heads));
  if (!workspace_.defined() || workspace_.nbytes() < bytes) {
    workspace_ = at::zeros({static_cast<std::int64_t>(bytes)}, at::TensorOptions(at::kByte).device(device_));
  }
  return workspace_.data_ptr();
}

at::Tensor CudaBackend::attend(const AttentionInput& input) {
  const c10::DeviceGuard guard(device_);
  const SequenceBatch& batch = *input.batch;
  const at::Tensor q = rows(input.q), k = rows(input.k), v = rows(input.v);
  const std::int64_t heads = q.size(1), d = q.size(2), group = heads / k.size(1);
  const DeviceLayer& l = layer(input.layer);
  if (l.key.mean.defined() && (input.soft_cap > 0.0 || input.sinks.defined())) {
    throw EnvironmentError(
        "the decode kernel cannot add the mean key under a soft cap or sink logits; pass --device cpu");
  }
  if (l.value.mean.defined() && input.sinks.defined()) {
    throw EnvironmentError("the decode kernel cannot add the mean value beside sink logits; pass --device cpu");
  }
  const at::Tensor sinks = input.sinks.defined() ? input.sinks.to(device_, at::kFloat).contiguous() : at::Tensor();

  std::vector<std::int64_t> offsets;
  std::int64_t offset = 0, longest = 0;
  for (const std::int64_t length : batch.lengths) {
    offsets.push_back(offset);
    offset += length;
    longest = std::max(longest, length);
  }
  const auto options = at::TensorOptions(at::kFloat).device(device_);
  at::Tensor out = at::empty({q.size(0), heads, d}, options);
  at::Tensor query =
      at::empty({static_cast<std::int64_t>(batch.lengths.size()), heads, d}, options.dtype(at::kBFloat16));
  for (std::int64_t step = 0; step < longest; ++step) {
    std::vector<std::int64_t> ids;
    std::vector<AppendJob> jobs;
    std::vector<PageRun> runs;
    for (std::size_t s = 0; s < offsets.size(); ++s) {
      if (step >= batch.lengths[s]) continue;
      const std::int64_t position = batch.starts[s] + step;
      DeviceCache::Sequence& held = cache_.reserve(input.layer, batch.ids[s], position + 1);
      held.tokens[static_cast<std::size_t>(input.layer)] = position + 1;
      const auto index = static_cast<std::int32_t>(ids.size());
      ids.push_back(batch.ids[s]);
      jobs.push_back({static_cast<std::int32_t>(offsets[s] + step), index, static_cast<std::int32_t>(position)});
      if (!method_.quantised) continue;
      add_ring_runs(held, index, method_.windows.quantised_end(position), method_.windows.quantised_end(position + 1),
                    runs);
    }
    tables_.clear();
    const Common common = add_sequences(ids, input.layer);
    const std::size_t jobs_at = tables_.add(words(jobs)), runs_at = tables_.add(words(runs));
    tables_.upload();
    write_windows(input.layer, q, k, v, std::ssize(jobs), jobs_at, common, &query);
    quantise(input.layer, k, v, std::ssize(runs), runs_at, common, true);

    const auto count = static_cast<std::int64_t>(ids.size());
    bool in_order = true;  // the rows of this step follow one another
    for (std::int64_t i = 1; i < count; ++i) {
      in_order = in_order && jobs[static_cast<std::size_t>(i)].row == jobs[static_cast<std::size_t>(i) - 1].row + 1;
    }
    at::Tensor step_out = in_order ? out.narrow(0, jobs[0].row, count) : at::empty({count, heads, d}, options);
    kernels::DecodeAttentionParams p{};
    p.q = query.const_data_ptr(), p.out = step_out.data_ptr();
    p.pages = cache_.pages(input.layer), p.window_pages = cache_.windows(input.layer);
    p.page_table = tables_.at(common.page_table), p.window_table = tables_.at(common.window_table);
    p.lengths = tables_.at(common.lengths);
    p.sink_logits = pointer<float>(sinks);
    p.workspace = workspace(count, group);
    p.batch = static_cast<std::int32_t>(count), p.query_heads = static_cast<std::int32_t>(heads);
    p.kv_heads = static_cast<std::int32_t>(k.size(1)), p.head_dim = static_cast<std::int32_t>(d);
    p.max_pages = static_cast<std::int32_t>(common.max_pages);
    p.sink_pages = static_cast<std::int32_t>(common.sink_pages);
    p.ring_pages = static_cast<std::int32_t>(cache_.ring_pages());
    p.sink = method_.quantised ? std::min(static_cast<std::int32_t>(method_.windows.sink), p.sink_pages * kPageTokens)
                               : p.sink_pages * kPageTokens;
    p.recent = method_.quantised ? static_cast<std::int32_t>(method_.windows.recent) : 1;
    p.flush = method_.quantised ? static_cast<std::int32_t>(method_.windows.flush) : 1;
    p.sliding_window = static_cast<std::int32_t>(input.sliding_window);
    p.scale = static_cast<float>(input.scale), p.soft_cap = static_cast<float>(input.soft_cap);
    p.out_float = true;
    const RowCode &key_code = method_.code(input.layer, Side::kKey),
                  &value_code = method_.code(input.layer, Side::kValue);
    p.blocks = key_code.layout == Layout::kBlocks;
    std::copy(key_code.widths.begin(), key_code.widths.end(), p.key_widths);
    std::copy(value_code.widths.begin(), value_code.widths.end(), p.value_widths);
    p.key_sigma = pointer<float>(l.key.sigma), p.value_sigma = pointer<float>(l.value.sigma);
    check(kernels::decode_attention(p, stream()), "decode_attention");
    if (!in_order) {
      std::vector<std::int64_t> to;
      for (const AppendJob& job : jobs) to.push_back(job.row);
      out.index_copy_(0, at::tensor(to, at::kLong).to(device_), step_out);
    }
  }
  if (method_.quantised && (longest > 1 || input.layer == model_.layers - 1)) check_finite(input.layer);
  return restore_outputs_on_device(out, l.value).to(input.q.options());
}

// Rows that pass the recent window go from the call to the pages; those that wait there are read before it is written.
void CudaBackend::append(const AttentionInput& input) {
  const c10::DeviceGuard guard(device_);
  const SequenceBatch& batch = *input.batch;
  const at::Tensor k = rows(input.k), v = rows(input.v);
  const WindowPolicy& w = method_.windows;
  std::vector<std::int64_t> ids;
  std::vector<AppendJob> jobs;
  std::vector<PageRun> from_ring, from_rows;
  std::int64_t offset = 0;
  for (std::size_t s = 0; s < batch.lengths.size(); ++s) {
    const std::int64_t start = batch.starts[s], end = start + batch.lengths[s];
    if (start == end) continue;
    DeviceCache::Sequence& held = cache_.reserve(input.layer, batch.ids[s], end);
    held.tokens[static_cast<std::size_t>(input.layer)] = end;
    const auto index = static_cast<std::int32_t>(ids.size());
    ids.push_back(batch.ids[s]);
    std::int64_t body = end;  // new tokens below it and past the sink are in pages
    if (method_.quantised) {
      const std::int64_t before = w.quantised_end(start);
      body = w.quantised_end(end);
      add_ring_runs(held, index, before, std::min(body, start), from_ring);
      for_each_page(w.sink, std::max(before, start), body, held.pages,
                    [&](std::int64_t first, std::int32_t count, std::int32_t page, std::int32_t slot) {
                      from_rows.push_back({static_cast<std::int32_t>(offset + first - start), count, page, slot});
                    });
    }
    for (std::int64_t p = start; p < end; ++p) {
      if (method_.quantised && p >= w.sink && p < body) continue;
      jobs.push_back({static_cast<std::int32_t>(offset + p - start), index, static_cast<std::int32_t>(p)});
    }
    offset += batch.lengths[s];
  }
  if (ids.empty()) return;
  tables_.clear();
  const Common common = add_sequences(ids, input.layer);
  const std::size_t jobs_at = tables_.add(words(jobs)), ring_at = tables_.add(words(from_ring)),
                    rows_at = tables_.add(words(from_rows));
  tables_.upload();
  quantise(input.layer, k, v, std::ssize(from_ring), ring_at, common, true);
  quantise(input.layer, k, v, std::ssize(from_rows), rows_at, common, false);
  write_windows(input.layer, {}, k, v, std::ssize(jobs), jobs_at, common, nullptr);
  if (method_.quantised) check_finite(input.layer);
}

StoredPages CudaBackend::stored(std::int64_t layer, std::int64_t sequence) const {
  const DeviceCache::Sequence* s = cache_.find(sequence);
  StoredPages out{layout(layer), 0, {}};
  if (s == nullptr || !method_.quantised) return out;
  const WindowPolicy& w = method_.windows;
  out.tokens = static_cast<std::int32_t>(w.quantised_end(s->tokens[static_cast<std::size_t>(layer)]) - w.sink);
  const std::int64_t count = (out.tokens + kPageTokens - 1) / kPageTokens;
  if (count == 0) return out;
  const std::vector<std::int64_t> ids(s->pages.begin(), s->pages.begin() + count);
  const at::Tensor pages =
      cache_.page_pool(layer).index_select(0, at::tensor(ids, at::kLong).to(device_)).to(at::kCPU).contiguous();
  const std::uint8_t* bytes = pages.const_data_ptr<std::uint8_t>();
  out.pages.assign(bytes, bytes + pages.nbytes());
  return out;
}

}  // namespace

std::unique_ptr<PagedBackend> make_cuda_backend(const KvMethod& method, const ModelConfig& model, at::Device device) {
  const std::string obstacle = decode_obstacle(method, model, device);
  if (!obstacle.empty()) throw EnvironmentError(obstacle);
  return std::make_unique<CudaBackend>(method, model, device);
}

}  // namespace oscar
