#include "rotation/head_scorer.h"

#include <ATen/ATen.h>

#include <cmath>

namespace oscar {
namespace {

at::Tensor of_head(const at::Tensor& matrices, std::int64_t head) {
  return matrices[matrices.size(0) == 1 ? 0 : head];
}

// tr(E M E^T) with E [n, d] FP32 and M [d, d] FP32, summed in FP64.
double weighted_energy(const at::Tensor& rows, const at::Tensor& metric) {
  return at::sum(at::matmul(rows, metric) * rows, at::kDouble).item<double>();
}

// Rows in the transformed space, and their reconstruction after quantisation.
class TransformedRows {
 public:
  explicit TransformedRows(const HeadProblem& p) : codec_{p.code, p.side, p.encoder} {
    const at::Tensor& original = p.side == Side::kKey ? p.k : p.v;
    exact_ = at::matmul(p.mean.defined() ? original - p.mean : original, p.forward).contiguous();
    rounded_ = exact_.to(at::kBFloat16).to(at::kFloat);
  }
  const at::Tensor& exact() const { return exact_; }
  at::Tensor quantised(float clip) const {
    RowCodec codec = codec_;
    codec.clip = clip;
    at::Tensor out = at::empty_like(rounded_);
    quantise_rows(codec, rounded_.const_data_ptr<float>(), rounded_.size(0), 0, out.mutable_data_ptr<float>(), 0);
    return out;
  }

 private:
  RowCodec codec_;
  at::Tensor exact_, rounded_;  // [N, d] FP32
};

// B with q' = q B (keys), or o = o' B^T (values): the way back to the coordinates of the model.
at::Tensor way_back(const HeadProblem& p) {
  if (!p.inverse_or_query.defined()) return p.forward;
  return p.side == Side::kKey ? p.inverse_or_query : p.inverse_or_query.t();
}

class MetricScorer : public HeadScorer {
 public:
  explicit MetricScorer(const HeadProblem& p) : rows_(p), centred_(p.side == Side::kKey) {
    const at::Tensor back = way_back(p).to(at::kDouble);
    const at::Tensor& metric = p.side == Side::kKey ? p.query_moment : p.output_metric;
    metric_ = at::matmul(at::matmul(back.t(), metric), back).to(at::kFloat);
    at::Tensor x = p.side == Side::kKey ? p.k : p.v;
    if (centred_) x = x - x.mean(0, true);
    signal_ = weighted_energy(x, metric.to(at::kFloat));
  }
  ErrorSum score(float clip) const override {
    at::Tensor error = rows_.quantised(clip) - rows_.exact();
    if (centred_) error = error - error.mean(0, true);
    return {weighted_energy(error, metric_), signal_};
  }

 private:
  TransformedRows rows_;
  bool centred_;
  at::Tensor metric_;
  double signal_ = 0.0;
};

class AttentionScorer : public HeadScorer {
 public:
  explicit AttentionScorer(const HeadProblem& p) : rows_(p), side_(p.side), back_(way_back(p)) {
    metric_ = p.output_metric.to(at::kFloat);
    const at::Tensor scaled = p.q / std::sqrt(static_cast<double>(p.q.size(-1)));
    const at::Tensor logits = at::matmul(scaled, p.k.t());
    weights_ = at::softmax(logits, -1);
    output_ = at::matmul(weights_, p.v);
    signal_ = weighted_energy(output_, metric_);
    if (side_ == Side::kKey) {
      query_ = at::matmul(scaled, back_);
      values_ = p.v;
    }
  }
  ErrorSum score(float clip) const override {
    const at::Tensor quantised = rows_.quantised(clip);
    at::Tensor difference;
    if (side_ == Side::kKey) {
      difference = at::matmul(at::softmax(at::matmul(query_, quantised.t()), -1), values_) - output_;
    } else {
      difference = at::matmul(weights_, at::matmul(quantised - rows_.exact(), back_.t()));
    }
    return {weighted_energy(difference, metric_), signal_};
  }

 private:
  TransformedRows rows_;
  Side side_;
  at::Tensor back_, metric_, weights_, output_, query_, values_;
  double signal_ = 0.0;
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
  problem.inverse_or_query = transform.orthogonal() ? at::Tensor() : of_head(transform.inverse_or_query, head);
  problem.mean = transform.mean.defined() ? transform.mean[head] : at::Tensor();
}

std::unique_ptr<HeadScorer> metric_scorer(const HeadProblem& problem) {
  return std::make_unique<MetricScorer>(problem);
}
std::unique_ptr<HeadScorer> attention_scorer(const HeadProblem& problem) {
  return std::make_unique<AttentionScorer>(problem);
}

}  // namespace oscar
