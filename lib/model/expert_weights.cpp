#include "model/experts.h"

#include <ATen/ATen.h>

#include <map>

#include "model/weights.h"

namespace oscar {
namespace {

std::string of_number(const std::string& pattern, std::int64_t expert) {
  const std::size_t at = pattern.find("{}");
  return pattern.substr(0, at) + std::to_string(expert) + pattern.substr(at + 2);
}

// Names and shapes of one layer's experts.
struct Experts {
  const Family& f;
  std::int64_t layer, count, width, hidden;
  bool fused;

  Experts(const Checkpoint& checkpoint, const Family& family, std::int64_t i)
      : f(family),
        layer(i),
        count(checkpoint.config().experts.count),
        width(checkpoint.config().experts.intermediate),
        hidden(checkpoint.config().hidden),
        fused(family.expert_gate.empty() || checkpoint.find(family.layer_tensor(i, family.experts_gate_up))) {}

  bool interleaved() const { return f.pieces.fused == FusedExperts::kInterleaved; }
  bool transposed() const { return f.pieces.fused != FusedExperts::kGateFirst; }
  std::string name(const std::string& suffix) const { return f.layer_tensor(layer, suffix); }
  std::string router() const { return name(fused && !f.experts_router.empty() ? f.experts_router : f.router); }
  std::string correction() const {
    return name(fused && !f.experts_router_correction.empty() ? f.experts_router_correction : f.router_correction);
  }
  std::vector<std::int64_t> gate_up_shape() const {
    return transposed() ? std::vector{count, hidden, 2 * width} : std::vector{count, 2 * width, hidden};
  }
  std::vector<std::int64_t> down_shape() const {
    return transposed() ? std::vector{count, width, hidden} : std::vector{count, hidden, width};
  }
};

// Columns gate, up, gate, ... of the last dimension -> all gates, then all ups.
at::Tensor gates_first(const at::Tensor& x) { return at::cat({x.slice(-1, 0, {}, 2), x.slice(-1, 1, {}, 2)}, -1); }

}  // namespace

bool has_experts(const ModelConfig& config, std::int64_t layer) {
  return !config.experts.layers.empty() && config.experts.layers.at(static_cast<std::size_t>(layer));
}

void visit_expert_tensors(const Checkpoint& checkpoint, const Family& family, std::int64_t layer,
                          const std::function<void(const std::string&, const std::vector<std::int64_t>&)>& visit) {
  const Experts e(checkpoint, family, layer);
  visit(e.router(), {e.count, e.hidden});
  if (!family.router_bias.empty()) visit(e.name(family.router_bias), {e.count});
  if (!family.router_correction.empty()) {
    visit(e.correction(), family.correction_row ? std::vector<std::int64_t>{1, e.count} : std::vector{e.count});
  }
  if (e.fused) {
    visit(e.name(family.experts_gate_up), e.gate_up_shape());
    visit(e.name(family.experts_down), e.down_shape());
    if (!family.experts_gate_up_bias.empty()) visit(e.name(family.experts_gate_up_bias), {e.count, 2 * e.width});
    if (!family.experts_down_bias.empty()) visit(e.name(family.experts_down_bias), {e.count, e.hidden});
    return;
  }
  for (std::int64_t i = 0; i < e.count; ++i) {
    visit(e.name(of_number(family.expert_gate, i)), {e.width, e.hidden});
    visit(e.name(of_number(family.expert_up, i)), {e.width, e.hidden});
    visit(e.name(of_number(family.expert_down, i)), {e.hidden, e.width});
  }
}

void load_expert_weights(const Checkpoint& checkpoint, const Family& family, std::int64_t layer,
                         const DecoderOptions& options, LayerWeights& weights) {
  const Experts e(checkpoint, family, layer);
  std::map<std::string, StoredWeight> stored;
  visit_expert_tensors(checkpoint, family, layer, [&](const std::string& name, const std::vector<std::int64_t>& shape) {
    stored.emplace(name, find_weight(checkpoint, name, shape));
  });
  const auto read = [&](const std::string& name) {
    return load_weight(stored.at(name), options.dtype, options.device);
  };
  weights.router =
      load_weight(stored.at(e.router()), family.pieces.wide_router ? at::kFloat : options.dtype, options.device);
  if (!family.router_correction.empty()) {
    weights.router_correction = load_weight(stored.at(e.correction()), at::kFloat, options.device).flatten();
  }
  if (!family.router_bias.empty()) weights.router_bias = read(e.name(family.router_bias));
  if (!e.fused) {
    const auto place = at::TensorOptions().dtype(options.dtype).device(options.device);
    weights.expert_gate_up = at::empty({e.count, 2 * e.width, e.hidden}, place);
    weights.expert_down = at::empty({e.count, e.hidden, e.width}, place);
    for (std::int64_t i = 0; i < e.count; ++i) {
      const at::Tensor gate_up = weights.expert_gate_up.select(0, i);
      gate_up.narrow(0, 0, e.width).copy_(read(e.name(of_number(family.expert_gate, i))));
      gate_up.narrow(0, e.width, e.width).copy_(read(e.name(of_number(family.expert_up, i))));
      weights.expert_down.select(0, i).copy_(read(e.name(of_number(family.expert_down, i))));
    }
    return;
  }
  const at::Tensor gate_up = read(e.name(family.experts_gate_up)), down = read(e.name(family.experts_down));
  const bool transposed = e.transposed();
  const at::Tensor ordered = e.interleaved() ? gates_first(gate_up) : gate_up;
  weights.expert_gate_up = transposed ? ordered.transpose(1, 2).contiguous() : ordered;
  weights.expert_down = transposed ? down.transpose(1, 2).contiguous() : down;
  if (!family.experts_gate_up_bias.empty()) {
    const at::Tensor bias = read(e.name(family.experts_gate_up_bias));
    weights.expert_gate_up_bias = e.interleaved() ? gates_first(bias) : bias;
  }
  if (!family.experts_down_bias.empty()) weights.expert_down_bias = read(e.name(family.experts_down_bias));
}

}  // namespace oscar
