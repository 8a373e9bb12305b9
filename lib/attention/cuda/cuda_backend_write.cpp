// Fills the cache on a GPU: new tokens into the BF16 windows, and tokens that leave the windows into pages.
#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>

#include "attention/cuda/cuda_backend.h"

namespace oscar {
namespace {

// Splits [begin, end) by pages and calls f(first position, count, page, slot) for each part.
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

}  // namespace

// Adds runs for tokens [begin, end) of the sequence in row `index` of the tables, which are still in its ring.
void CudaBackend::add_ring_runs(const DeviceCache::Sequence& held, std::int32_t index, std::int64_t begin,
                                std::int64_t end, std::vector<PageRun>& runs) const {
  const std::int64_t ring = cache_.ring_pages() * kPageTokens;
  for_each_page(method_.windows.sink, begin, end, held.pages,
                [&](std::int64_t first, std::int32_t count, std::int32_t page, std::int32_t slot) {
                  runs.push_back({static_cast<std::int32_t>(index * ring + first % ring), count, page, slot,
                                  static_cast<std::int32_t>(first)});
                });
}

CudaBackend::Common CudaBackend::add_sequences(const std::vector<std::int64_t>& ids, std::int64_t layer) {
  Common c{0, 0, 0, 1, 0, 0};
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
    c.longest = std::max<std::int64_t>(c.longest, lengths.back());
  }
  c.page_table = tables_.add(pages);
  c.window_table = tables_.add(windows);
  c.lengths = tables_.add(lengths);
  return c;
}

void CudaBackend::write_windows(std::int64_t index, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                std::int64_t jobs, std::size_t jobs_at, const Common& common, StepQueries* query) {
  if (jobs == 0) return;
  const DeviceLayer& l = layer(index);
  kernels::AppendTokensParams p;
  if (q.defined()) {
    p.q = q.const_data_ptr();
    p.q_stride = q.stride(0);
    p.query = reinterpret_cast<std::uint16_t*>(query->rotated.data_ptr<at::BFloat16>());
    if (query->positions.defined()) p.position_query = query->positions.data_ptr<float>();
    p.query_heads = static_cast<std::int32_t>(q.size(1));
  } else {
    p.query_heads = static_cast<std::int32_t>(k.size(1));
  }
  p.k = k.const_data_ptr(), p.v = v.const_data_ptr();
  p.k_stride = k.stride(0), p.v_stride = v.stride(0);
  p.jobs = reinterpret_cast<const AppendJob*>(tables_.at(jobs_at));
  p.query_matrix = pointer<float>(l.key.back);
  p.key_matrix = pointer<float>(l.key.forward), p.value_matrix = pointer<float>(l.value.forward);
  p.key_mean = pointer<float>(l.key.mean), p.value_mean = pointer<float>(l.value.mean);
  if (l.key.rotated_mean) p.rope_phases = phases_.rows(common.longest);
  p.window_pages = cache_.windows(index);
  p.window_table = tables_.at(common.window_table);
  p.tokens = static_cast<std::int32_t>(jobs);
  p.kv_heads = static_cast<std::int32_t>(k.size(1)), p.head_dim = static_cast<std::int32_t>(k.size(2));
  if (l.key.forward.defined()) p.matrix_heads = static_cast<std::int32_t>(l.key.forward.size(0));
  if (l.value.forward.defined()) p.value_matrix_heads = static_cast<std::int32_t>(l.value.forward.size(0));
  p.sink_pages = static_cast<std::int32_t>(common.sink_pages);
  p.sink = method_.quantized ? static_cast<std::int32_t>(method_.windows.sink) : p.sink_pages * kPageTokens;
  p.ring_pages = static_cast<std::int32_t>(cache_.ring_pages());
  p.rows_bfloat16 = k.scalar_type() == at::kBFloat16;
  check_launch(kernels::append_tokens(p, current_stream()), "append_tokens");
}

void CudaBackend::quantize(std::int64_t index, const at::Tensor& k, const at::Tensor& v, std::int64_t runs,
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
    p.bad = finite_.of(index, which);
    p.layout = is_key ? layout(index).key : layout(index).value;
    p.page_bytes = layout(index).bytes();
    p.run_count = static_cast<std::int32_t>(runs), p.kv_heads = static_cast<std::int32_t>(x.size(1));
    p.matrix_heads = 1;
    p.encoder = kernel_encoder(is_key ? method_.key_encoder : method_.value_encoder);
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
      if (s.rotated_mean) p.rope_phases = phases_.rows(common.longest);
      if (s.forward.defined()) p.matrix_heads = static_cast<std::int32_t>(s.forward.size(0));
    }
    check_launch(kernels::quantize_pages(p, current_stream()), "quantize_pages");
  }
}

// Rows that skip the recent window go directly from the call to the pages; rows that wait in it are read before it is
// overwritten.
void CudaBackend::append(const AttentionInput& input) {
  const c10::DeviceGuard guard(device_);
  const SequenceBatch& batch = *input.batch;
  const at::Tensor k = kernel_rows(input.k, device_), v = kernel_rows(input.v, device_);
  const CacheWindows& w = method_.windows;
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
    std::int64_t body = end;  // new tokens below it and after the sink are in pages
    if (method_.quantized) {
      const std::int64_t before = w.quantized_end(start);
      body = w.quantized_end(end);
      add_ring_runs(held, index, before, std::min(body, start), from_ring);
      for_each_page(w.sink, std::max(before, start), body, held.pages,
                    [&](std::int64_t first, std::int32_t count, std::int32_t page, std::int32_t slot) {
                      from_rows.push_back({static_cast<std::int32_t>(offset + first - start), count, page, slot,
                                           static_cast<std::int32_t>(first)});
                    });
    }
    for (std::int64_t p = start; p < end; ++p) {
      if (method_.quantized && p >= w.sink && p < body) continue;
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
  quantize(input.layer, k, v, std::ssize(from_ring), ring_at, common, true);
  quantize(input.layer, k, v, std::ssize(from_rows), rows_at, common, false);
  write_windows(input.layer, {}, k, v, std::ssize(jobs), jobs_at, common, nullptr);
  if (method_.quantized) finite_.check(0, input.layer);
}

}  // namespace oscar
