#include "fit/metric_fit.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "base/formatted.h"
#include "fit/balance.h"
#include "fit/fit_rows.h"
#include "fit/for_each_head.h"
#include "fit/predict.h"
#include "transform/compose.h"

namespace oscar {
namespace {

constexpr double kMostCondition = 1e4;  // for channels scaled to unit deviation; below it BF16 windows lose nothing
constexpr double kMostDamping = 0.1;
constexpr std::int64_t kCheckedRows = 128;  // half of them are checked

// [n, n] orthogonal matrix that spreads n ranked directions evenly over n channels.
at::Tensor spreading(std::int64_t n) {
  const std::vector<std::int64_t> ranks = rank_distribution(n);
  const at::Tensor order = at::tensor(at::ArrayRef<std::int64_t>(ranks), at::kLong);
  return at::matmul(at::eye(n, at::kDouble).index_select(1, order), hadamard_matrix(n));
}

// The transform of one head.
struct Head {
  at::Tensor forward, back;  // [d, d] FP64: x' = x forward, x = x' back
  at::Tensor lambda;         // [d]
  double condition = 1.0;
  std::string warning;
  TransformCheck check;  // for the heads that use it
};

at::Tensor stored(const at::Tensor& m) { return m.to(at::kFloat).contiguous(); }

// Blocks of `size` channels, each scaled to unit deviation and spread by its own matrix.
Head spread_blocks(const Balanced& b, std::int64_t size) {
  const std::int64_t d = b.lambda.size(0);
  const at::Tensor mix = spreading(size);
  Head head{at::empty({d, d}, at::kDouble), at::empty({d, d}, at::kDouble), b.lambda, b.condition, "", {}};
  const double floor = 1e-12 * b.lambda[0].item<double>();
  for (std::int64_t first = 0; first < d; first += size) {
    const double sigma = std::sqrt(std::max(b.lambda.narrow(0, first, size).mean().item<double>(), floor));
    head.forward.narrow(1, first, size).copy_(at::matmul(b.basis.narrow(1, first, size), mix) / sigma);
    head.back.narrow(0, first, size).copy_(at::matmul(mix.t(), b.inverse.narrow(0, first, size)) * sigma);
  }
  return head;
}

// For a head without a possible fit: the Hadamard matrix, scaled to unit deviation.
Head plain_head(const at::Tensor& covariance, const at::Tensor& metric) {
  const std::int64_t d = covariance.size(0);
  const double spread = covariance.diagonal().mean().item<double>(), seen = metric.diagonal().mean().item<double>();
  const double sigma = spread > 0.0 ? std::clamp(std::sqrt(spread), 1e-30, 1e30) : 1.0;  // within FP32
  const at::Tensor h = hadamard_matrix(d);
  return {h / sigma, h * sigma, at::full({d}, std::sqrt(std::max(spread * seen, 0.0)), at::kDouble), 1.0, "", {}};
}

Head fit_head(at::Tensor covariance, const at::Tensor& metric, const FitOptions& o, std::int64_t tokens,
              std::int64_t block, const std::string& name) {
  const auto size = [](const at::Tensor& m) { return m.diagonal().sum().item<double>(); };
  if (!(size(covariance) > 0.0) || !(size(metric) > 0.0)) {
    Head head = plain_head(covariance, metric);
    head.warning = name + (size(covariance) > 0.0 ? ": no error in it reaches the output" : ": never varies") +
                   "; its transform is the Hadamard matrix";
    return head;
  }
  std::string warning;
  double condition = 0.0, noise = 0.0;
  if (const at::Tensor definite = without_noise(covariance, o.damping, tokens, noise); definite.defined()) {
    covariance = definite;
    warning = name + formatted(": rounding left its covariance indefinite; below %.2g of a channel is noise", noise);
  }
  for (double damping = o.damping; damping <= kMostDamping * 1.001; damping *= 10.0) {
    const Balanced b = balance(damped(covariance, damping, tokens), damped(metric, damping, tokens), name);
    if (b.condition <= kMostCondition) {
      Head head = spread_blocks(b, block);
      head.warning = warning;
      if (damping > o.damping * 1.001) {
        head.warning = name + formatted(": its transform was badly conditioned (%.2g); damping was raised to %.2g",
                                        condition, damping);
      }
      return head;
    }
    condition = std::max(condition, b.condition);
    if (damping <= 0.0) damping = 1e-5;
  }
  Head head = plain_head(covariance, metric);
  head.warning =
      name + formatted(": its transform is badly conditioned (%.2g, at most %.2g); it is the Hadamard matrix",
                       condition, kMostCondition);
  return head;
}

// One matrix as part of a side, to check its effect on the rows of head `h`.
SideTransform as_side(const Head& head, Side side, const at::Tensor& mean, bool rotated) {
  SideTransform t;
  t.forward = stored(head.forward).unsqueeze(0);
  t.back(side) = stored(side == Side::kKey ? head.back.t() : head.back).unsqueeze(0);
  if (mean.defined()) t.mean = stored(mean);
  t.rotated_mean = rotated;
  return t;
}

// Passes sampled rows of the KV heads [first, last) through the transform. Without rows, the check finds nothing.
TransformCheck check_head(const Statistics& s, std::size_t layer, const RowSet& rows, const SideTransform& t, Side side,
                          std::int64_t first, std::int64_t last) {
  TransformCheck check;
  for (std::int64_t h = first; h < last && rows.tokens() > 0; ++h) {
    HeadProblem problem = make_problem(s, layer, h, rows, uniform_code(static_cast<int>(s.head_dim)), Encoder::kMinMax);
    use_transform(problem, side, t, h);
    check.add(check_transform(problem));
  }
  return check;
}

// Variance of a logit for errors of unit variance in each of the n channels of block b: tr(Q'_b), Q' = back Q back^T.
double unit_noise(const at::Tensor& back, const at::Tensor& logits, std::int64_t b, std::int64_t n) {
  const at::Tensor rows = back.narrow(0, b * n, n);
  return (at::matmul(rows, logits) * rows).sum().item<double>();
}

// back: [S, d, d] x = x' back; logits: [Hkv, d, d] logit_moment() for keys, undefined for values.
void describe(MetricSide& side, std::int64_t head_dim, const at::Tensor& back, const at::Tensor& logits) {
  const std::int64_t n = head_dim / kBands;
  double log_gain = 0.0;
  const std::int64_t heads = side.lambda.size(0);
  for (std::int64_t h = 0; h < heads; ++h) {
    const at::Tensor lambda = side.lambda[h];
    HeadEnergy& head = side.energy.heads.emplace_back();
    for (std::int64_t b = 0; b < kBands && n > 0; ++b) {
      const auto i = static_cast<std::size_t>(b);
      const double mean = lambda.narrow(0, b * n, n).mean().item<double>();
      head.block[i] = static_cast<double>(n) * mean * mean / side.residual;
      if (logits.defined()) head.logit_noise[i] = unit_noise(back[back.size(0) == 1 ? 0 : h], logits[h], b, n);
    }
    const at::Tensor energy = lambda.square();
    const double am = energy.mean().item<double>();
    if (am > 0.0) log_gain += std::log(am) - energy.clamp_min(1e-30 * am).log().mean().item<double>();
  }
  side.gain = std::exp(log_gain / static_cast<double>(heads));
}

}  // namespace

std::vector<MetricSide> fit_metric_side(const Statistics& s, const FitOptions& o, Side side, bool blocks,
                                        const std::vector<SideMoments>& moments, std::vector<std::string>& warnings) {
  const bool centered = o.center != Center::kNone && (o.center != Center::kKey || side == Side::kKey);
  const bool shared = o.scope == Scope::kLayer;
  const std::int64_t d = s.head_dim, matrices = shared ? 1 : s.kv_heads;
  std::vector<LayerRows> rows(s.layers.size());
  std::vector<std::vector<Head>> heads(s.layers.size(), std::vector<Head>(static_cast<std::size_t>(matrices)));
  for_each_layer(s.layers.size(), [&](std::size_t layer) { rows[layer] = split_rows(s, layer, 0, kCheckedRows); });
  for_each_head(s.layers.size(), matrices, {}, [&](std::size_t layer, std::int64_t h) {
    const SideMoments& m = moments[layer];
    const std::string name = "layer " + std::to_string(layer) + (side == Side::kKey ? " keys" : " values") +
                             (shared ? "" : " head " + std::to_string(h));
    const at::Tensor c = shared ? m.covariance.mean(0) : m.covariance[h];
    const at::Tensor w = shared ? m.metric.mean(0) : m.metric[h];
    Head head = fit_head(c, w, o, s.tokens, blocks ? d / kBands : d, name);
    const auto check = [&] {
      const SideTransform t = as_side(head, side, centered ? m.mean : at::Tensor(), m.rotated);
      head.check = check_head(s, layer, rows[layer].fit, t, side, shared ? 0 : h, shared ? s.kv_heads : h + 1);
    };
    check();
    if (!head.check.sound()) {
      const TransformCheck found = head.check;
      head = plain_head(c, w);
      head.warning = name + formatted(
                                ": its transform changes sampled rows (%.2g of their range in FP32, %.2g in BF16); "
                                "it is the Hadamard matrix",
                                found.change, found.bf16);
      check();
    }
    heads[layer][static_cast<std::size_t>(h)] = std::move(head);
  });
  std::vector<MetricSide> result(s.layers.size());
  for_each_layer(s.layers.size(), [&](std::size_t layer) {
    MetricSide& out = result[layer];
    std::vector<at::Tensor> forward, back, inverse, lambda;
    for (const Head& head : heads[layer]) {
      forward.push_back(head.forward);
      inverse.push_back(head.back);
      back.push_back(side == Side::kKey ? head.back.t() : head.back);
      lambda.push_back(head.lambda);
      out.conditions.push_back(head.condition);
      out.check.add(head.check);
    }
    out.transform.forward = stored(at::stack(forward));
    out.transform.back(side) = stored(at::stack(back));
    out.transform.eigenvalues = stored(at::stack(lambda).flip(1));
    if (centered) out.transform.mean = stored(moments[layer].mean);
    out.transform.rotated_mean = moments[layer].rotated;
    out.transform.clip = {0.0f};
    out.lambda = at::stack(lambda).expand({s.kv_heads, d}).contiguous();
    out.residual = residual_power(s, layer);
    at::Tensor logits;
    if (side == Side::kKey) logits = logit_moment(s, layer, moment_choice(o, o.value_target, centered).served);
    describe(out, d, at::stack(inverse), logits);
  });
  for (const std::vector<Head>& layer : heads) {
    for (const Head& head : layer) {
      if (!head.warning.empty()) warnings.push_back(head.warning);
    }
  }
  return result;
}

}  // namespace oscar
