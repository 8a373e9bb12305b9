// The decode path: checks, and the choice of what it runs on (paged_backend.h).
#include <ATen/ATen.h>

#include <stdexcept>

#include "base/errors.h"
#include "runtime/cached_attention.h"
#include "runtime/paged_backend.h"

namespace oscar {

PagedAttention::PagedAttention(const KvMethod& method, const ModelConfig& model, at::Device device)
    : backend_(device.is_cuda() ? make_cuda_backend(method, model, device)
               : method.engine  ? make_described_backend(method, model)
                                : make_cpu_backend(method, model)) {}
PagedAttention::~PagedAttention() = default;

void PagedAttention::check_starts(const AttentionInput& input) const {
  const SequenceBatch& batch = *input.batch;
  for (std::size_t s = 0; s < batch.lengths.size(); ++s) {
    const std::int64_t held = backend_->tokens(input.layer, batch.ids[s]);
    if (batch.starts[s] == held) continue;
    throw std::invalid_argument("sequence " + std::to_string(batch.ids[s]) + " starts at token " +
                                std::to_string(batch.starts[s]) + ", the cache of layer " +
                                std::to_string(input.layer) + " holds " + std::to_string(held));
  }
}

at::Tensor PagedAttention::attend(const AttentionInput& input) {
  check_starts(input);
  return backend_->attend(input);
}

void PagedAttention::append(const AttentionInput& input) {
  check_starts(input);
  backend_->append(input);
}

std::uint64_t PagedAttention::allocated_bytes() const { return backend_->allocated_bytes(); }
void PagedAttention::release(std::int64_t sequence_id) { backend_->release(sequence_id); }
StoredPages PagedAttention::stored(std::int64_t layer, std::int64_t sequence_id) const {
  return backend_->stored(layer, sequence_id);
}

const PagedCache& PagedAttention::cache() const {
  const PagedCache* cache = backend_->cpu_cache();
  if (cache == nullptr) throw std::logic_error("the cache is on a GPU: use stored()");
  return *cache;
}

const DescribedCache* PagedAttention::described() const { return backend_->described_cache(); }

std::string decode_obstacle(const KvMethod& method, const ModelConfig& model, at::Device device) {
  if (!device.is_cuda() || !method.paged()) return "";
  const std::string reason = cuda_decode_obstacle(method, model);
  return reason.empty() ? reason
                        : "the decode path of method '" + method.id + "' cannot run on " + device.str() + ": " +
                              reason + "; pass --device cpu, or --path prefill";
}

std::string decode_note(const KvMethod& method, const ModelConfig& model, at::Device device) {
  if (!device.is_cuda() || !method.paged()) return "";
  const std::string reason = general_kernel_reason(method, model);
  return reason.empty() ? reason : "decode path of '" + method.id + "': general kernel, because " + reason;
}

}  // namespace oscar
