#include "curves/gradient_sensitivity.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "attention/reconstruction.h"
#include "base/errors.h"
#include "base/interrupt.h"
#include "base/progress.h"
#include "statistics/layer_gradient.h"
#include "statistics/output_gradient.h"

namespace oscar {
namespace {

constexpr std::int64_t kLogits = std::int64_t{1} << 22;  // held at once

SequenceBatch batch_of(std::int64_t tokens) { return {{0}, {tokens}, {0}}; }

// Full attention that keeps what it was given.
class KeptInput : public FullAttention {
 public:
  at::Tensor attend(const AttentionInput& input) override {
    k = input.k, v = input.v;
    return FullAttention::attend(input);
  }
  at::Tensor k, v;  // [T, Hkv, d]
};

// d (sum of log p of the next tokens) / d of the last layer's output, [T, hidden].
at::Tensor next_token_gradient(const Decoder& decoder, const at::Tensor& hidden, const std::vector<std::int32_t>& ids) {
  const std::int64_t labels = hidden.size(0) - 1,
                     step = std::max<std::int64_t>(kLogits / decoder.config().vocabulary, 1);
  const at::Tensor next = at::tensor(at::ArrayRef<std::int32_t>(ids), at::kInt).to(at::kLong).slice(0, 1);
  at::Tensor gradient = at::zeros({hidden.size(0), hidden.size(1)}, hidden.options().dtype(at::kFloat));
  for (std::int64_t t = 0; t < labels; t += step) {
    const std::int64_t count = std::min(step, labels - t);
    gradient.narrow(0, t, count)
        .copy_(label_gradient(decoder, hidden.narrow(0, t, count), next.narrow(0, t, count).to(hidden.device())));
  }
  return gradient;
}

// visit(layer, what enters it of one sequence, its gradients) for all sequences of a layer, from the last layer on.
using Visit = std::function<void(std::int64_t, const at::Tensor&, const LayerGradient&)>;
void backward(Decoder& decoder, const SensitivityRequest& request, bool weights, const Visit& visit) {
  const std::int64_t layers = decoder.config().layers;
  const FarPairs far{request.windows.sink, request.windows.recent, true};
  std::vector<std::vector<at::Tensor>> entering(static_cast<std::size_t>(layers) + 1);
  Progress progress("sensitivities", static_cast<std::uint64_t>(2 * layers * std::ssize(request.sequences)), "passes");
  const auto step = [&] {
    if (interrupt_requested()) throw InterruptedError("interrupted while gradients were computed");
    progress.advance(1);
  };
  for (const std::vector<std::int32_t>& ids : request.sequences) entering[0].push_back(decoder.embed(ids));
  FullAttention full;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    for (const at::Tensor& hidden : entering[static_cast<std::size_t>(layer)]) {
      entering[static_cast<std::size_t>(layer) + 1].push_back(
          decoder.run_layer(layer, hidden, batch_of(hidden.size(0)), full));
      step();
    }
  }
  std::vector<at::Tensor> gradient;
  for (std::size_t s = 0; s < request.sequences.size(); ++s) {
    gradient.push_back(next_token_gradient(decoder, entering.back()[s], request.sequences[s]));
  }
  for (std::int64_t layer = layers; layer-- > 0;) {
    for (std::size_t s = 0; s < gradient.size(); ++s) {
      const at::Tensor& hidden = entering[static_cast<std::size_t>(layer)][s];
      const LayerGradient found =
          layer_gradient(decoder, layer, hidden, batch_of(hidden.size(0)), gradient[s], far, {.weights = weights});
      if (decoder.config().holds_kv(layer)) visit(layer, hidden, found);  // others only pass gradients on
      gradient[s] = found.hidden;
      step();
    }
    entering.pop_back();
  }
  progress.finish();
}

// Means over the sequences of sums [layers x 2][n].
Sensitivities means_of(Sensitivities sums, std::size_t sequences) {
  for (std::size_t p = 0; p < sums.size(); ++p) {
    for (double& sum : sums[p]) {
      sum /= static_cast<double>(sequences);
      if (!std::isfinite(sum)) {
        throw NumericalError("the gradient of layer " + std::to_string(p / 2) + (p % 2 == 0 ? " keys" : " values") +
                             " holds NaN or infinity; check the checkpoint, or try --dtype float32");
      }
    }
  }
  return sums;
}

std::size_t places(const Decoder& decoder) { return 2 * static_cast<std::size_t>(decoder.config().kv_layers()); }

}  // namespace

Sensitivities first_order_scores(Decoder& decoder, const Bundle& bundle, const SensitivityRequest& request) {
  std::vector<KvMethod> methods;
  for (const std::uint8_t width : kWholeWidths) {
    methods.push_back(whole_width_method(bundle, decoder.config(), request.windows, width, width));
  }
  Sensitivities sums(places(decoder), std::vector<double>(methods.size(), 0.0));
  backward(decoder, request, false, [&](std::int64_t layer, const at::Tensor& hidden, const LayerGradient& gradient) {
    const std::int64_t place = decoder.config().kv_place(layer);
    if (methods.front().left_out_at(place)) return;
    KeptInput input;
    decoder.run_layer(layer, hidden, batch_of(hidden.size(0)), input);
    const std::int64_t first = request.windows.sink, end = hidden.size(0) - request.windows.recent;
    for (const Side side : {Side::kKey, Side::kValue}) {
      const bool key = side == Side::kKey;
      const at::Tensor rows = (key ? input.k : input.v).to(at::kFloat);
      const at::Tensor g = (key ? gradient.far_k : gradient.far_v).slice(0, first, end);
      for (std::size_t m = 0; m < methods.size(); ++m) {
        const at::Tensor coded = decoded_model_rows(methods[m], place, side, rows).coded.transpose(0, 1);
        const at::Tensor change = ((coded - rows).slice(0, first, end) * g).sum(-1).abs();
        sums[2 * static_cast<std::size_t>(place) + (key ? 0 : 1)][m] += change.mean().item<double>();
      }
    }
  });
  return means_of(std::move(sums), request.sequences.size());
}

Sensitivities weight_gradient_norms(Decoder& decoder, const SensitivityRequest& request) {
  Sensitivities sums(places(decoder), std::vector<double>(1, 0.0));
  backward(decoder, request, true, [&](std::int64_t layer, const at::Tensor&, const LayerGradient& gradient) {
    const auto p = 2 * static_cast<std::size_t>(decoder.config().kv_place(layer));
    sums[p].front() += gradient.weight_k.norm().item<double>();
    sums[p + 1].front() += gradient.weight_v.norm().item<double>();
  });
  return means_of(std::move(sums), request.sequences.size());
}

}  // namespace oscar
