// The decode path of methods of other papers on the CPU: DescribedCache and attend_described().
#include <ATen/ATen.h>

#include <stdexcept>

#include "runtime/basis.h"
#include "runtime/described_attention.h"
#include "runtime/paged_backend.h"

namespace oscar {
namespace {

class DescribedBackend : public PagedBackend {
 public:
  DescribedBackend(const KvMethod& method, const ModelConfig& model)
      : cache_(method.engine->description(), model.layers, model.kv_heads, model.head_dim) {}
  at::Tensor attend(const AttentionInput& input) override { return attend_described(cache_, input); }
  void append(const AttentionInput& input) override;
  void release(std::int64_t sequence) override { cache_.release(sequence); }
  std::int64_t tokens(std::int64_t layer, std::int64_t sequence) const override {
    return cache_.tokens(layer, sequence);
  }
  StoredPages stored(std::int64_t, std::int64_t) const override {
    throw std::logic_error("a method of another paper has pages of its own: use described()");
  }
  std::uint64_t allocated_bytes() const override { return cache_.allocated_bytes(); }
  const DescribedCache* described_cache() const override { return &cache_; }

 private:
  DescribedCache cache_;
};

void DescribedBackend::append(const AttentionInput& input) {
  const at::Tensor k = cache_rows(input.k, nullptr), v = cache_rows(input.v, nullptr);
  const std::int64_t row = input.k.size(1) * input.k.size(2);
  const auto* keys = reinterpret_cast<const std::uint16_t*>(k.const_data_ptr<at::BFloat16>());
  const auto* values = reinterpret_cast<const std::uint16_t*>(v.const_data_ptr<at::BFloat16>());
  std::int64_t at = 0;
  for (std::size_t s = 0; s < input.batch->lengths.size(); ++s) {
    for (std::int64_t i = 0; i < input.batch->lengths[s]; ++i, ++at) {
      cache_.append(input.layer, input.batch->ids[s], keys + at * row, values + at * row);
    }
  }
}

}  // namespace

std::unique_ptr<PagedBackend> make_described_backend(const KvMethod& method, const ModelConfig& model) {
  return std::make_unique<DescribedBackend>(method, model);
}

}  // namespace oscar
