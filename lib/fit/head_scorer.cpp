#include "fit/head_scorer.h"

#include <ATen/ATen.h>

#include "base/errors.h"
#include "model/rope_phases.h"

namespace oscar {
namespace {

at::Tensor of_head(const at::Tensor& matrices, std::int64_t head) { return matrices[matrices.size(0) == 1 ? 0 : head]; }

// tr(E M E^T) with E [n, d] FP32 and M [d, d] FP32, summed in FP64.
double weighted_energy(const at::Tensor& rows, const at::Tensor& metric) {
  return at::sum(at::matmul(rows, metric) * rows, at::kDouble).item<double>();
}

// Rows in the transformed space, and their reconstruction after quantization.
class TransformedRows {
 public:
  explicit TransformedRows(const HeadProblem& p) : codec_{p.code, p.side, p.encoder, 0.0f, p.sigma} {
    const at::Tensor& original = p.side == Side::kKey ? p.k : p.v;
    exact_ = at::matmul(p.mean.defined() ? original - p.mean : original, p.forward).contiguous();
    rounded_ = exact_.to(at::kBFloat16).to(at::kFloat);
  }
  const at::Tensor& exact() const { return exact_; }
  at::Tensor quantized(float clip) const {
    RowCodec codec = codec_;
    codec.clip = clip;
    at::Tensor out = at::empty_like(rounded_);
    quantize_rows(codec, rounded_.const_data_ptr<float>(), rounded_.size(0), 0, out.mutable_data_ptr<float>(), 0);
    return out;
  }

 private:
  RowCodec codec_;
  at::Tensor exact_, rounded_;  // [N, d] FP32
};

// B with q' = q B (keys), or o = o' B^T (values): the inverse to the coordinates of the model.
at::Tensor way_back(const HeadProblem& p) {
  if (!p.back.defined()) return p.forward;
  return p.side == Side::kKey ? p.back : p.back.t();
}

class MetricScorer : public HeadScorer {
 public:
  MetricScorer(const HeadProblem& p, double gain_weight) : rows_(p), gain_weight_(gain_weight) {
    const at::Tensor back = way_back(p).to(at::kDouble);
    metric_ = at::matmul(at::matmul(back.t(), p.metric), back).to(at::kFloat);
    centered_ = p.side == Side::kKey;
    exact_ = rows_.exact();
    if (centered_) exact_ = exact_ - exact_.mean(0, true);
    energy_ = weighted_energy(exact_, metric_);
    // The signal comes from the model's own rows, so that all transforms share a denominator.
    at::Tensor original = p.side == Side::kKey ? p.k : p.v;
    if (centered_) original = original - original.mean(0, true);
    signal_ = weighted_energy(original, p.metric.to(at::kFloat));
  }
  ErrorSum score(float clip) const override {
    at::Tensor error = rows_.quantized(clip) - rows_.exact();
    if (centered_) error = error - error.mean(0, true);
    const at::Tensor weighted = at::matmul(error, metric_);
    double total = at::sum(weighted * error, at::kDouble).item<double>();
    if (gain_weight_ > 0.0 && energy_ > 0.0) {
      const double gain = at::sum(weighted * exact_, at::kDouble).item<double>() / energy_;
      total += gain_weight_ * gain * gain * energy_;
    }
    return {total, signal_};
  }

 private:
  TransformedRows rows_;
  double gain_weight_;
  bool centered_ = false;
  at::Tensor metric_, exact_;
  double energy_ = 0.0, signal_ = 0.0;
};

}  // namespace

ErrorSum& ErrorSum::operator+=(const ErrorSum& other) {
  error += other.error;
  signal += other.signal;
  return *this;
}

double ErrorSum::relative() const { return signal > 0.0 ? error / signal : 0.0; }

void use_transform(HeadProblem& problem, Side side, const SideTransform& transform, std::int64_t head) {
  problem.side = side;
  problem.forward = of_head(transform.forward, head);
  problem.back = transform.orthogonal() ? at::Tensor() : of_head(transform.back(side), head);
  problem.mean = transform.mean.defined() ? transform.mean[head] : at::Tensor();
  problem.sigma.fill(1.0f);
  if (transform.sigma.defined()) {
    std::copy_n(transform.sigma[head].contiguous().const_data_ptr<float>(), kBands, problem.sigma.begin());
  }
  if (!transform.rotated_mean) return;
  if (!problem.rope_phases.defined()) {
    throw InputError("the sampled rows of the statistics have no positions, which centering before RoPE needs");
  }
  problem.mean = rotated_means(transform.mean[head].unsqueeze(0), problem.rope_phases).squeeze(1);
}

std::unique_ptr<HeadScorer> metric_scorer(const HeadProblem& problem) {
  return std::make_unique<MetricScorer>(problem, 0.0);
}
std::unique_ptr<HeadScorer> gain_scorer(const HeadProblem& problem) {
  return std::make_unique<MetricScorer>(problem, kGainWeight);
}

}  // namespace oscar
