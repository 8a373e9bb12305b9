#include "statistics/kl_labels.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/random.h"
#include "statistics/row_sample.h"

namespace oscar {
namespace {

constexpr std::uint64_t kLabelStream = 0x6b6c2d6c6162656cULL;  // apart from the priorities of the row sample

// choose(logits [n, V]) gives the labels [n].
template <typename Choose>
at::Tensor gradient_of(const Decoder& decoder, const at::Tensor& hidden, const Choose& choose) {
  const c10::AutoGradMode on(true);
  at::Tensor in = hidden.detach();
  in.requires_grad_(true);
  const at::Tensor logits = decoder.logits(decoder.final_norm(in));
  const at::Tensor labels = choose(logits.detach());
  const at::Tensor total = at::log_softmax(logits, -1).gather(1, labels.unsqueeze(1)).sum();
  return torch::autograd::grad({total}, {in})[0].to(at::kFloat);
}

}  // namespace

double label_draw(std::uint64_t seed, std::string_view prompt_set_sha256, std::int64_t sequence,
                  std::int64_t position) {
  return random_unit(kLabelStream, token_priority(seed, prompt_set_sha256, sequence, position), 0);
}

at::Tensor draw_labels(const at::Tensor& logits, const at::Tensor& draws) {
  const at::Tensor cumulative = at::softmax(logits.to(at::kDouble), -1).cumsum(-1);
  const at::Tensor total = cumulative.select(1, -1);
  const at::Tensor target = (draws.to(logits.device()) * total).unsqueeze(1);
  return at::searchsorted(cumulative, target, false, /*right=*/true).squeeze(1).clamp_max_(logits.size(1) - 1);
}

at::Tensor label_gradient(const Decoder& decoder, const at::Tensor& hidden, const at::Tensor& labels) {
  return gradient_of(decoder, hidden, [&](const at::Tensor&) { return labels; });
}

at::Tensor drawn_label_gradient(const Decoder& decoder, const at::Tensor& hidden, const at::Tensor& draws) {
  return gradient_of(decoder, hidden, [&](const at::Tensor& logits) { return draw_labels(logits, draws); });
}

}  // namespace oscar
