// The decode path: checks before what it runs on (paged_backend.h).
#include <ATen/ATen.h>

#include <stdexcept>

#include "attention/cache_factory.h"
#include "attention/cached_attention.h"
#include "attention/paged_backend.h"

namespace oscar {

PagedAttention::PagedAttention(const KvMethod& method, const ModelConfig& model, at::Device device)
    : backend_(make_backend(method, model, device)) {}
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
void PagedAttention::release(std::int64_t sequence_id) {
  backend_->release(sequence_id);
  states_.release(sequence_id);
}
std::int64_t PagedAttention::tokens(std::int64_t layer, std::int64_t sequence_id) const {
  return backend_->tokens(layer, sequence_id);
}
std::int64_t PagedAttention::pages_in_use() const { return backend_->pages_in_use(); }
StoredPages PagedAttention::stored(std::int64_t layer, std::int64_t sequence_id, Side side) const {
  return backend_->stored(layer, sequence_id, side);
}

std::string decode_unsupported(const KvMethod& method, const ModelConfig& model, at::Device device) {
  if (!device.is_cuda() || !method.paged()) return "";
  const std::string reason = method.one_vector ? "the kernels read keys and values apart, latent attention caches one "
                                                 "vector for both"
                             : method.logit_correction && method.quantised ? "the kernels have no logit correction"
                                                                           : cuda_decode_unsupported(method, model);
  return reason.empty() ? reason
                        : "the decode path of method '" + method.id + "' cannot run on " + device.str() + ": " +
                              reason + "; pass --device cpu, or --path prefill";
}

std::string decode_note(const KvMethod& method, const ModelConfig& model, at::Device device) {
  if (!device.is_cuda() || !method.paged()) return "";
  const std::string reason = fallback_reason(method, model);
  return reason.empty() ? reason : "decode path of '" + method.id + "': general kernel, because " + reason;
}

}  // namespace oscar
