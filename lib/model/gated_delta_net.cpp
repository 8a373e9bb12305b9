#include "model/gated_delta_net.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>
#include <vector>

#include "model/layer.h"

namespace oscar {
namespace {

constexpr std::int64_t kBlock = 4096;   // tokens; the FP32 copies of a block are the layer's largest tensors
constexpr std::int64_t kFewTokens = 4;  // per sequence; with fewer, single steps cost less than a chunk
constexpr double kLeastSquare = 1e-6;   // added to squared lengths of q and k

// Stacked states of B sequences: [B, K - 1, C] in x's dtype, [B, Hv, dk, dv] FP32.
struct States {
  at::Tensor inputs, memory;
};

// Inputs of the convolution and the rule for B sequences of T tokens.
struct Block {
  at::Tensor qkv;          // [B, T, C]
  at::Tensor beta, decay;  // [B, T, Hv] before their activation
};

// y_t = sum_j w_j x_{t - K + 1 + j}: [B, K - 1 + T, C] -> [B, T, C] FP32. One product per tap; there are few.
at::Tensor convolved(const at::Tensor& inputs, const at::Tensor& weight) {
  const at::Tensor taps = weight.to(at::kFloat).squeeze(1), wide = inputs.to(at::kFloat);  // [C, K]
  const std::int64_t kernel = taps.size(1), tokens = inputs.size(1) - kernel + 1;
  at::Tensor sum = wide.narrow(1, 0, tokens) * taps.select(1, 0);
  for (std::int64_t j = 1; j < kernel; ++j) sum = sum + wide.narrow(1, j, tokens) * taps.select(1, j);
  return sum;
}

at::Tensor to_unit_length(const at::Tensor& x) { return x * x.square().sum(-1, true).add(kLeastSquare).rsqrt(); }

// Outputs of the rule [B, T, Hv, dv] in x's dtype; advances `states`.
at::Tensor mixed(const LinearAttention& c, const LayerWeights& w, const Block& x, States& states) {
  const std::int64_t sequences = x.qkv.size(0), tokens = x.qkv.size(1);
  const at::ScalarType dtype = x.qkv.scalar_type();
  const at::Tensor inputs = at::cat({states.inputs, x.qkv}, 1);
  states.inputs = inputs.narrow(1, tokens, c.kernel - 1);
  // Rounds to the run's dtype after the product and after its activation.
  const at::Tensor qkv = at::silu(convolved(inputs, w.linear_conv).to(dtype)).to(at::kFloat);
  const auto heads = [&](std::int64_t first, std::int64_t count, std::int64_t dim) {
    return qkv.narrow(2, first, count * dim).view({sequences, tokens, count, dim}).transpose(1, 2);
  };
  const std::int64_t shared = c.value_heads / c.key_heads;
  const auto keys = [&](std::int64_t first) {
    const at::Tensor unit = to_unit_length(heads(first, c.key_heads, c.key_dim));
    return shared == 1 ? unit : unit.repeat_interleave(shared, 1);
  };
  DeltaRuleInput rule{.q = keys(0) * (1.0 / std::sqrt(static_cast<double>(c.key_dim))),
                      .k = keys(c.keys()),
                      .v = heads(2 * c.keys(), c.value_heads, c.value_dim),
                      .beta = x.beta.sigmoid().to(at::kFloat).transpose(1, 2)};
  const at::Tensor softplus = at::softplus(x.decay.to(at::kFloat) + w.linear_decay_bias);
  rule.log_decay = (softplus * w.linear_log_rate.exp().neg()).transpose(1, 2);
  DeltaRuleOutput out =
      tokens < kFewTokens ? recurrent_delta_rule(rule, states.memory) : chunked_delta_rule(rule, states.memory);
  states.memory = out.memory;
  return out.output.transpose(1, 2).to(dtype);
}

States first_states(const LinearAttention& c, std::int64_t sequences, const at::TensorOptions& options) {
  return {at::zeros({sequences, c.kernel - 1, c.channels()}, options),
          at::zeros({sequences, c.value_heads, c.key_dim, c.value_dim}, options.dtype(at::kFloat))};
}

// Consecutive sequences of equal length run together.
struct Group {
  std::size_t first, count;
  std::int64_t row, tokens;
};

std::vector<Group> groups_of(const SequenceBatch& batch) {
  std::vector<Group> groups;
  std::int64_t row = 0;
  for (std::size_t s = 0; s < batch.lengths.size(); ++s) {
    if (!groups.empty() && groups.back().tokens == batch.lengths[s]) {
      ++groups.back().count;
    } else {
      groups.push_back({s, 1, row, batch.lengths[s]});
    }
    row += batch.lengths[s];
  }
  std::erase_if(groups, [](const Group& group) { return group.tokens == 0; });
  return groups;
}

States states_before(const LinearAttention& c, std::int64_t layer, const SequenceBatch& batch, const Group& group,
                     const at::TensorOptions& options, RecurrentStates* kept) {
  States states = first_states(c, static_cast<std::int64_t>(group.count), options);
  for (std::size_t i = 0; i < group.count; ++i) {
    const std::size_t s = group.first + i;
    if (kept == nullptr && batch.starts[s] != 0) {
      throw std::invalid_argument("gated_delta_net: nothing was kept of the sequence, so it must start at 0");
    }
    if (kept == nullptr) continue;
    const RecurrentState& before = kept->before(layer, batch.ids[s], batch.starts[s]);
    if (before.tokens == 0) continue;
    states.inputs[static_cast<std::int64_t>(i)].copy_(before.inputs);
    states.memory[static_cast<std::int64_t>(i)].copy_(before.memory);
  }
  return states;
}

void keep(const States& states, std::int64_t layer, const SequenceBatch& batch, const Group& group,
          RecurrentStates& kept) {
  for (std::size_t i = 0; i < group.count; ++i) {
    const std::size_t s = group.first + i;
    const auto at = static_cast<std::int64_t>(i);  // copied, because a view would keep the full block in memory
    RecurrentState after;
    after.inputs = states.inputs[at].clone(), after.memory = states.memory[at].clone();
    after.tokens = batch.starts[s] + group.tokens;
    kept.keep(layer, batch.ids[s], std::move(after));
  }
}

// round(round(o^) w silu(z)): the weight in the run's dtype, the gate in FP32.
at::Tensor gated_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& gate, double eps) {
  const at::Tensor normed = rms_norm(x, weight, eps, NormKind::kRounded);
  return (normed.to(at::kFloat) * at::silu(gate.to(at::kFloat))).to(x.scalar_type());
}

}  // namespace

at::Tensor gated_delta_net(const ModelConfig& config, std::int64_t layer, const LayerWeights& w, const at::Tensor& x,
                           const SequenceBatch& batch, RecurrentStates* kept) {
  const LinearAttention& c = config.linear;
  std::vector<at::Tensor> rows;
  for (const Group& group : groups_of(batch)) {
    const auto sequences = static_cast<std::int64_t>(group.count);
    const at::Tensor in = x.narrow(0, group.row, sequences * group.tokens).view({sequences, group.tokens, -1});
    States states = states_before(c, layer, batch, group, x.options(), kept);
    const std::int64_t block = std::max<std::int64_t>(kBlock / sequences, 1);
    std::vector<at::Tensor> parts;
    for (std::int64_t start = 0; start < group.tokens; start += block) {
      const at::Tensor part = in.narrow(1, start, std::min(block, group.tokens - start));
      const auto projected = [&](const at::Tensor& weight) { return at::linear(part, weight); };
      const at::Tensor out =
          mixed(c, w, {projected(w.linear_qkv), projected(w.linear_beta), projected(w.linear_decay)}, states);
      const at::Tensor gated = gated_norm(out, w.linear_norm, projected(w.linear_z).view(out.sizes()), config.rms_eps);
      parts.push_back(at::linear(gated.flatten(2), w.linear_out));
    }
    if (kept != nullptr) keep(states, layer, batch, group, *kept);
    rows.push_back((parts.size() == 1 ? parts.front() : at::cat(parts, 1)).flatten(0, 1));
  }
  if (rows.empty()) return at::empty_like(x);
  return rows.size() == 1 ? rows.front() : at::cat(rows, 0);
}

}  // namespace oscar
