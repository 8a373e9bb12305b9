#include "statistics/output_gradient.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/random.h"
#include "statistics/row_sample.h"

namespace oscar {
namespace {

// Apart from the priorities of the row sample.
constexpr std::uint64_t kSignStream = 0x6b6c2d7369676e73ULL, kPlaceStream = 0x6b6c2d706c616365ULL;
// Places where a token's signs may begin. Signs of two entries of the vocabulary then agree as often as not up to one
// in a thousand.
constexpr int kPlaceBits = 20;

// slope(p [n, V] FP32) gives dL/d logits; no graph of a softmax is made.
template <typename Slope>
at::Tensor gradient_of(const Decoder& decoder, const at::Tensor& hidden, const Slope& slope) {
  const c10::AutoGradMode on(true);
  at::Tensor in = hidden.detach();
  in.requires_grad_(true);
  const at::Tensor logits = decoder.logits(decoder.final_norm(in));
  const at::Tensor at_logits = [&] {
    const c10::AutoGradMode off(false);
    return slope(at::softmax(logits.detach(), -1));
  }();
  return torch::autograd::grad({logits}, {in}, {at_logits})[0].to(at::kFloat);
}

}  // namespace

ProbeSigns::ProbeSigns(std::uint64_t seed, std::int64_t vocabulary, at::Device device) : vocabulary_(vocabulary) {
  const std::int64_t size = (std::int64_t{1} << kPlaceBits) + vocabulary - 1;
  at::Tensor table = at::empty({size}, at::kFloat);
  float* signs = table.mutable_data_ptr<float>();
  std::uint64_t bits = 0;
  for (std::int64_t i = 0; i < size; ++i) {
    if (i % 64 == 0) bits = random_bits(seed, kSignStream, static_cast<std::uint64_t>(i / 64));
    signs[i] = (bits >> (i % 64) & 1) != 0 ? 1.0f : -1.0f;
  }
  table_ = table.to(device);
}

std::int64_t ProbeSigns::place(std::uint64_t seed, std::string_view prompt_set_sha256, std::int64_t sequence,
                               std::int64_t position) {
  const std::uint64_t key = token_priority(seed, prompt_set_sha256, sequence, position);
  return static_cast<std::int64_t>(random_bits(kPlaceStream, key, 0) >> (64 - kPlaceBits));
}

at::Tensor ProbeSigns::at_places(const at::Tensor& places) const {
  return table_.unfold(0, vocabulary_, 1).index_select(0, places.to(table_.device()));
}

at::Tensor fisher_probe(const at::Tensor& p, const at::Tensor& signs) {
  at::Tensor z = p.sqrt().mul_(signs);
  return z.addcmul_(p, z.sum(-1, true), -1.0);
}

at::Tensor probe_gradient(const Decoder& decoder, const at::Tensor& hidden, const at::Tensor& signs) {
  return gradient_of(decoder, hidden, [&](const at::Tensor& p) { return fisher_probe(p, signs); });
}

at::Tensor label_gradient(const Decoder& decoder, const at::Tensor& hidden, const at::Tensor& labels) {
  return gradient_of(decoder, hidden, [&](at::Tensor p) {
    const at::Tensor chosen = labels.unsqueeze(1);
    return p.neg_().scatter_add_(1, chosen, at::ones(chosen.sizes(), p.options()));
  });
}

}  // namespace oscar
