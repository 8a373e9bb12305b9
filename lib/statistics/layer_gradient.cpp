#include "statistics/layer_gradient.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>
#include <utility>
#include <vector>

#include "statistics/flash_gradient.h"

namespace oscar {
namespace {

AttentionInput without_graph(const AttentionInput& input) {
  AttentionInput values = input;
  values.q = input.q.detach(), values.k = input.k.detach(), values.v = input.v.detach();
  return values;
}

// Exact attention whose output starts a graph of its own. output: what the attention gives, where it is known.
class CutAttention : public Attention {
 public:
  CutAttention(at::Tensor output, const FarPairs& pairs) : known_(std::move(output)), pairs_(pairs) {}
  at::Tensor attend(const AttentionInput& input) override {
    input_ = input;
    const AttentionInput values = without_graph(input);
    const c10::AutoGradMode off(false);
    if (known_.defined()) {
      output_ = known_.detach();
    } else if (flash_gradient_runs(values, pairs_)) {
      flash_ = flash_output(values);
      output_ = flash_->out.detach();
    } else {
      output_ = inner_.attend(values).detach();
    }
    output_.requires_grad_(true);
    return output_;
  }
  const AttentionInput& input() const { return input_; }
  const at::Tensor& output() const { return output_; }
  // Of the attention's input, [T, Hq, d]: dL/d of its output. queries: those of q, too.
  AttentionGradient backward(const at::Tensor& gradient, bool queries) const {
    const AttentionInput values = without_graph(input_);
    const c10::AutoGradMode off(false);
    return flash_ ? flash_gradient(values, *flash_, gradient, pairs_, queries)
                  : attention_gradient(values, output_.detach(), gradient, pairs_, queries);
  }

 private:
  FullAttention inner_;
  at::Tensor known_;
  FarPairs pairs_;
  AttentionInput input_;  // with the graph that made it
  at::Tensor output_;
  std::optional<FlashOutput> flash_;  // where the output was computed so
};

// Weights that take part in a graph while this lives.
class Followed {
 public:
  explicit Followed(std::vector<at::Tensor> weights) : weights_(std::move(weights)) {
    for (const at::Tensor& w : weights_) w.requires_grad_(true);
  }
  ~Followed() {
    for (const at::Tensor& w : weights_) w.requires_grad_(false);
  }
  Followed(const Followed&) = delete;
  Followed& operator=(const Followed&) = delete;

 private:
  std::vector<at::Tensor> weights_;
};

}  // namespace

LayerGradient layer_gradient(Decoder& decoder, std::int64_t layer, const at::Tensor& hidden, const SequenceBatch& batch,
                             const at::Tensor& gradient, const FarPairs& pairs, const GradientRequest& request) {
  const c10::AutoGradMode on(true);
  std::vector<at::Tensor> followed;
  const bool holds_kv = decoder.config().holds_kv(layer);
  if (request.weights && holds_kv) followed = {decoder.layer_weights(layer).k};
  const bool own_values = decoder.config().projects_values(layer);  // else one weight has both gradients
  if (request.weights && holds_kv && own_values) followed.push_back(decoder.layer_weights(layer).v);
  const Followed scope(followed);
  at::Tensor in = hidden.detach();
  in.requires_grad_(true);
  CutAttention attention(holds_kv ? request.output : at::Tensor(), pairs);
  const at::Tensor out = decoder.run_layer(layer, in, batch, attention);
  if (!holds_kv) {
    const auto whole = torch::autograd::grad({out}, {in}, {gradient.to(out.scalar_type())});
    LayerGradient found;
    found.hidden = whole[0].to(at::kFloat);
    return found;
  }
  // What reaches the attention's output, and the input past the attention. The graph in front of the attention shares
  // nodes with it in families that gate the output, so it must outlive this call.
  const auto after = torch::autograd::grad({out}, {attention.output(), in}, {gradient.to(out.scalar_type())},
                                           /*retain_graph=*/true);
  const bool before_attention = request.hidden || request.weights;
  const AttentionInput& input = attention.input();
  const AttentionGradient inner = attention.backward(after[0], before_attention);
  if (!before_attention) return {{}, inner.far_k, inner.far_v, inner.k, inner.v, {}, {}};
  const auto type = out.scalar_type();
  std::vector<at::Tensor> inputs{in};
  inputs.insert(inputs.end(), followed.begin(), followed.end());
  const auto before = torch::autograd::grad({input.q, input.k, input.v}, inputs,
                                            {inner.q.to(type), inner.k.to(type), inner.v.to(type)});
  LayerGradient found{
      after[1].to(at::kFloat) + before[0].to(at::kFloat), inner.far_k, inner.far_v, inner.k, inner.v, {}, {}};
  if (request.weights) {
    found.weight_k = before[1].to(at::kFloat);
    found.weight_v = before[own_values ? 2 : 1].to(at::kFloat);
  }
  return found;
}

}  // namespace oscar
