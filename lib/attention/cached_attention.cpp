// Passes calls to a backend (paged_backend.h), whose attend() begins with begin_step().
#include "attention/cached_attention.h"

#include "attention/begin_step.h"
#include "attention/cache_factory.h"
#include "attention/paged_backend.h"

namespace oscar {

PagedAttention::PagedAttention(const KvMethod& method, const ModelConfig& model, at::Device device)
    : make_([&method, &model, device] { return make_backend(method, model, device); }), backend_(make_()) {}
PagedAttention::~PagedAttention() = default;

void PagedAttention::expect(std::int64_t sequences, std::int64_t tokens) { backend_->expect(sequences, tokens); }

PagedBackend& PagedAttention::backend_of(const AttentionInput& input) {
  if (input.reader == 0) return *backend_;
  std::unique_ptr<PagedBackend>& reader = readers_[input.reader];
  if (reader == nullptr) reader = make_();
  return *reader;
}

at::Tensor PagedAttention::attend(const AttentionInput& input) { return backend_of(input).attend(input); }

void PagedAttention::append(const AttentionInput& input) {
  PagedBackend& backend = backend_of(input);
  check_starts(input, [&](std::int64_t id) { return backend.tokens(input.layer, id); });
  backend.append(input);
}

std::uint64_t PagedAttention::allocated_bytes() const { return backend_->allocated_bytes(); }
void PagedAttention::release(std::int64_t sequence_id) {
  backend_->release(sequence_id);
  for (const auto& [layer, reader] : readers_) reader->release(sequence_id);
  states_.release(sequence_id);
}
std::int64_t PagedAttention::tokens(std::int64_t layer, std::int64_t sequence_id) const {
  return backend_->tokens(layer, sequence_id);
}
std::int64_t PagedAttention::pages_in_use() const { return backend_->pages_in_use(); }
StoredPages PagedAttention::stored(std::int64_t layer, std::int64_t sequence_id, Side side) const {
  return backend_->stored(layer, sequence_id, side);
}

std::string decode_note(const KvMethod& method, const ModelConfig& model, at::Device device) {
  if (!device.is_cuda() || !method.paged()) return "";
  const std::string reason = fast_kernel_fault(method, model);
  return reason.empty() ? reason : "decode path of '" + method.id + "': on the CPU, because " + reason;
}

}  // namespace oscar
