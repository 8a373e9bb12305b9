#include "statistics/kl_labels.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "base/random.h"
#include "statistics/row_sample.h"

namespace oscar {
namespace {

constexpr std::uint64_t kLabelStream = 0x6b6c2d6c6162656cULL;  // apart from the priorities of the row sample

// Probabilities added in FP32 before FP64 goes on: a vocabulary in FP64 costs more than the model's own layers here.
constexpr std::int64_t kLabelBlock = 64;

// choose(p [n, V] FP32) gives the labels [n]. d log p(label) / d logits is one-hot - p, so no graph of a softmax is
// made.
template <typename Choose>
at::Tensor gradient_of(const Decoder& decoder, const at::Tensor& hidden, const Choose& choose) {
  const c10::AutoGradMode on(true);
  at::Tensor in = hidden.detach();
  in.requires_grad_(true);
  const at::Tensor logits = decoder.logits(decoder.final_norm(in));
  at::Tensor p = at::softmax(logits.detach(), -1);
  const at::Tensor labels = choose(p).unsqueeze(1);
  p.neg_().scatter_add_(1, labels, at::ones(labels.sizes(), p.options()));
  return torch::autograd::grad({logits}, {in}, {p})[0].to(at::kFloat);
}

}  // namespace

double label_draw(std::uint64_t seed, std::string_view prompt_set_sha256, std::int64_t sequence,
                  std::int64_t position) {
  return random_unit(kLabelStream, token_priority(seed, prompt_set_sha256, sequence, position), 0);
}

// Blocks are added up in FP64, then one block of each row token by token.
at::Tensor draw_labels(const at::Tensor& p, const at::Tensor& draws) {
  const std::int64_t n = p.size(0), vocabulary = p.size(1), block = std::min(kLabelBlock, vocabulary);
  const std::int64_t blocks = vocabulary / block, tail = vocabulary % block;
  at::Tensor sums = p.narrow(1, 0, blocks * block).view({n, blocks, block}).sum(-1).to(at::kDouble);
  if (tail > 0) sums = at::cat({sums, p.narrow(1, blocks * block, tail).sum(-1, true).to(at::kDouble)}, 1);
  const at::Tensor cumulative = sums.cumsum(-1);
  const at::Tensor target = draws.to(p.device()).unsqueeze(1) * cumulative.narrow(1, -1, 1);
  const at::Tensor chosen =
      at::searchsorted(cumulative, target, false, /*right=*/true).clamp_max_(cumulative.size(1) - 1);
  const at::Tensor left = target - cumulative.gather(1, chosen) + sums.gather(1, chosen);
  const at::Tensor first = chosen * block;  // [n, 1]; the last block may be shorter
  const at::Tensor ids = first + at::arange(block, first.options()).unsqueeze(0);
  const at::Tensor inside =
      p.gather(1, ids.clamp_max(vocabulary - 1)).to(at::kDouble).masked_fill(ids.ge(vocabulary), 0.0);
  const at::Tensor place = at::searchsorted(inside.cumsum(-1), left.contiguous(), false, /*right=*/true);
  // Sums of a block in FP32 and in FP64 differ by roundings: never a token past the block.
  return (first + place.clamp_max_(block - 1)).squeeze(1).clamp_max_(vocabulary - 1);
}

at::Tensor label_gradient(const Decoder& decoder, const at::Tensor& hidden, const at::Tensor& labels) {
  return gradient_of(decoder, hidden, [&](const at::Tensor&) { return labels; });
}

at::Tensor drawn_label_gradient(const Decoder& decoder, const at::Tensor& hidden, const at::Tensor& draws) {
  return gradient_of(decoder, hidden, [&](const at::Tensor& p) { return draw_labels(p, draws); });
}

}  // namespace oscar
