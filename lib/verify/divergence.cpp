#include "verify/divergence.h"

#include <algorithm>

#include "base/errors.h"

namespace oscar {
namespace {

at::Tensor log_probabilities(const at::Tensor& logits) { return at::log_softmax(logits.to(at::kCPU, at::kDouble), -1); }

// Finite row results say that every logit of the row is finite: one that is not makes its row NaN or infinite.
void require_finite(const at::Tensor& rows, const std::string& what, const std::string& where) {
  if (at::isfinite(rows).all().item<bool>()) return;
  throw NumericalError("the logits of " + what + " are not finite (NaN or infinity) in " + where);
}

at::Tensor negative_gather(const at::Tensor& log_p, const at::Tensor& targets) {
  return log_p.gather(1, targets).squeeze(1).neg();
}

}  // namespace

BaselineRows::BaselineRows(const at::Tensor& logits, std::span<const std::int32_t> targets, const std::string& where)
    : where_(where) {
  log_p_ = log_probabilities(logits);
  require_finite(log_p_.amin(-1), "the BF16 baseline", where);
  p_ = log_p_.exp();
  top_ = logits.argmax(-1).to(at::kCPU);
  targets_ = at::empty({static_cast<std::int64_t>(targets.size()), 1}, at::kLong);
  std::copy(targets.begin(), targets.end(), targets_.mutable_data_ptr<std::int64_t>());
  nll_ = negative_gather(log_p_, targets_);
}

void BaselineRows::score(const at::Tensor& logits, const std::string& method, SequenceScores& scores) const {
  const at::Tensor log_q = log_probabilities(logits);
  // Rounding can leave a sum of the order of -1e-17 where the two are almost equal; a divergence is not negative.
  const at::Tensor kl = (log_p_ - log_q).mul_(p_).sum(-1).clamp_min_(0.0);
  const at::Tensor nll = negative_gather(log_q, targets_);
  require_finite(kl, "method " + method, where_);
  require_finite(nll, "method " + method, where_);
  const at::Tensor same = logits.argmax(-1).to(at::kCPU).eq(top_);
  const std::int64_t rows = kl.size(0);
  const auto append = [rows](const at::Tensor& tensor, std::vector<double>& to) {
    const double* data = tensor.const_data_ptr<double>();
    to.insert(to.end(), data, data + rows);
  };
  append(nll_, scores.baseline_nll);
  append(nll, scores.nll);
  append(kl, scores.kl);
  const bool* equal = same.const_data_ptr<bool>();
  for (std::int64_t r = 0; r < rows; ++r) scores.same_top.push_back(equal[r] ? 1 : 0);
}

std::int64_t rows_per_block(std::int64_t vocabulary) {
  constexpr std::int64_t kBytes = std::int64_t{8} << 20;  // larger blocks leave the caches, and memory is mapped anew
  return std::clamp<std::int64_t>(kBytes / (8 * std::max<std::int64_t>(vocabulary, 1)), 1, 512);
}

}  // namespace oscar
