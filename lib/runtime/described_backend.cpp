// The decode path of methods of other papers on the CPU: DescribedCache and attend_described().
#include <ATen/ATen.h>

#include <stdexcept>

#include "runtime/basis.h"
#include "runtime/batch_steps.h"
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
  for_each_row(*input.batch, k, v, [&](std::int64_t id, const std::uint16_t* key, const std::uint16_t* value) {
    cache_.append(input.layer, id, key, value);
  });
}

}  // namespace

std::unique_ptr<PagedBackend> make_described_backend(const KvMethod& method, const ModelConfig& model) {
  return std::make_unique<DescribedBackend>(method, model);
}

}  // namespace oscar
