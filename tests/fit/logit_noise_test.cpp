// The predicted variance of the noise in the logits against the noise of coded keys.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "codec/codec.h"
#include "fit/key_center.h"
#include "fit/made_statistics.h"
#include "fit/metric_fit.h"

namespace oscar {
namespace {

// Mean squared error of scale q k^T from the blocks that have bits.
double sampled(const MadeRows& rows, const SideTransform& t, const Widths& widths, std::int64_t head, double scale) {
  const std::int64_t group = rows.q.size(1) / rows.k.size(1), d = rows.k.size(2);
  const at::Tensor mean = t.mean[head].to(at::kDouble), forward = t.forward[head].to(at::kDouble);
  const at::Tensor x = at::matmul(rows.k.select(1, head).to(at::kDouble) - mean, forward).to(at::kFloat).contiguous();
  at::Tensor read = at::empty_like(x);
  const RowCodec codec{band_code(static_cast<int>(d), widths), Side::kKey, Encoder::kSearch};
  quantize_rows(codec, x.const_data_ptr<float>(), x.size(0), d, read.data_ptr<float>(), d);
  at::Tensor error = (read - x).to(at::kDouble);
  for (std::size_t b = 0; b < kBands; ++b) {
    if (widths[b] == 0) error.narrow(1, static_cast<std::int64_t>(b) * d / kBands, d / kBands).zero_();
  }
  const at::Tensor q = rows.q.narrow(1, head * group, group).reshape({-1, d}).to(at::kDouble);
  const at::Tensor logits = at::matmul(at::matmul(q, t.query_side[head].to(at::kDouble)), error.t());
  return (logits * scale).square().mean().item<double>();
}

TEST(LogitNoise, IsThatOfCodedKeys) {
  at::manual_seed(6);
  const std::int64_t d = 128;
  const MadeRows rows = random_made_rows(1500, 4, 2, d);
  for (const double scale : {0.0, 0.25}) {  // 0: unknown, 1/sqrt(d)
    Statistics s = made_statistics({rows});
    s.attention_scale = scale;
    FitOptions o;
    o.method = "waterfill", o.scope = Scope::kHead, o.clip = ClipMode::kNone, o.encoder = Encoder::kSearch;
    o.center = Center::kMean, o.value_target = ValueTarget::kOutput;
    std::vector<std::string> warnings;
    const MetricSide side =
        fit_metric_side(s, o, Side::kKey, true, fitted_moments(s, o, Side::kKey, true), warnings).front();
    for (const Widths& widths : {Widths{1, 0, 0, 0}, Widths{2, 1, 1, 0}, Widths{4, 2, 2, 1}, Widths{4, 4, 4, 4}}) {
      for (std::int64_t h = 0; h < 2; ++h) {
        const double found = sampled(rows, side.transform, widths, h, scale > 0.0 ? scale : 1.0 / std::sqrt(d));
        const double predicted = logit_noise(side.energy.heads[static_cast<std::size_t>(h)], widths);
        // Four bits err less on Gaussian rows of 32 channels (.0074) than on those of models, which the constant is of.
        EXPECT_LT(predicted, (widths[3] == 4 ? 1.8 : 1.12) * found) << h;
        EXPECT_GT(predicted, 0.88 * found) << h;
      }
    }
  }
}

}  // namespace
}  // namespace oscar
