// The decode path on a GPU: append_tokens, quantize_pages and decode_attention on a DeviceCache, on LibTorch's current
// stream. CPU reference: cpu_backend.cpp. cuda_backend_write.cpp fills the cache; cuda_backend.cpp has the attention
// over it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstring>
#include <vector>

#include "attention/begin_step.h"
#include "attention/cuda/device_cache.h"
#include "attention/cuda/device_transform.h"
#include "attention/cuda/finite_watch.h"
#include "attention/paged_backend.h"
#include "base/cuda/launch.h"
#include "kernels/append/append_tokens.h"
#include "kernels/decode/decode_attention.h"
#include "kernels/quantize/quantize_pages.h"

namespace oscar {

using kernels::AppendJob;
using kernels::PageRun;
static_assert(sizeof(AppendJob) == 12 && sizeof(PageRun) == 20);

// Jobs and runs as the int32 words of a table.
template <class T>
std::vector<std::int32_t> words(const std::vector<T>& items) {
  std::vector<std::int32_t> out(items.size() * sizeof(T) / 4);
  if (!items.empty()) std::memcpy(out.data(), items.data(), out.size() * 4);
  return out;
}

class CudaBackend : public PagedBackend {
 public:
  CudaBackend(const KvMethod& method, const ModelConfig& model, at::Device device);

  void expect(std::int64_t sequences, std::int64_t tokens) override { cache_.expect(sequences, tokens); }
  at::Tensor attend(const AttentionInput& input) override;
  void append(const AttentionInput& input) override;
  void release(std::int64_t sequence) override { cache_.release(sequence); }
  std::int64_t tokens(std::int64_t layer, std::int64_t sequence) const override {
    const DeviceCache::Sequence* s = cache_.find(sequence);
    return s == nullptr ? 0 : s->tokens[static_cast<std::size_t>(layer)];
  }
  StoredPages stored(std::int64_t layer, std::int64_t sequence, Side side) const override;  // one page holds both sides
  std::int64_t pages_in_use() const override { return cache_.pages_in_use(); }
  std::uint64_t allocated_bytes() const override { return cache_.allocated_bytes(); }

 private:
  struct DeviceLayer {
    DeviceSide key, value;
    bool ready = false;
  };

  const PageLayout& layout(std::int64_t layer) const { return layouts_[static_cast<std::size_t>(layer)]; }
  const DeviceLayer& layer(std::int64_t index);
  // Offsets of the table sections that every launch needs.
  struct Common {
    std::size_t page_table, window_table, lengths;
    std::int64_t max_pages, sink_pages;
    std::int64_t longest;  // tokens of the longest sequence
  };
  // Queries of a step, [sequences, heads, d]: BF16 in the cache basis. For keys with a rotated mean also FP32 for the
  // position phases, else undefined.
  struct StepQueries {
    at::Tensor rotated, positions;
  };
  // One token of each sequence of a batch, already in the cache and in the tables.
  struct Step {
    std::vector<std::int64_t> ids;
    Common tables;
  };
  Step append_step(std::int64_t layer, const std::vector<StepToken>& tokens, const BegunStep& rows, StepQueries& query);
  // out [sequences, heads, d] F32, in the cache basis.
  void attend_step(const AttentionInput& input, const Step& step, const StepQueries& query, const at::Tensor& sinks,
                   at::Tensor& out);
  void add_ring_runs(const DeviceCache::Sequence& held, std::int32_t index, std::int64_t begin, std::int64_t end,
                     std::vector<PageRun>& runs) const;
  Common add_sequences(const std::vector<std::int64_t>& ids, std::int64_t layer);
  void write_windows(std::int64_t layer, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     std::int64_t jobs, std::size_t jobs_at, const Common& common, StepQueries* query);
  void quantize(std::int64_t layer, const at::Tensor& k, const at::Tensor& v, std::int64_t runs, std::size_t runs_at,
                const Common& common, bool from_ring);
  // For a launch with the shapes in p. positions: its logits depend on the position of the key.
  void* workspace(const kernels::PagedDecodeParams& p, bool positions);

  const KvMethod& method_;
  const ModelConfig& model_;
  at::Device device_;
  std::vector<PageLayout> layouts_;  // [L]
  DeviceCache cache_;
  DevicePhases phases_;
  StepTables tables_;
  std::vector<DeviceLayer> layers_;
  FiniteWatch finite_;
  at::Tensor workspace_;
};

}  // namespace oscar
