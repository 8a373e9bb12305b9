#include "verify/divergence.h"

#include <algorithm>

#include "base/errors.h"

namespace oscar {
namespace {

constexpr std::int64_t kBlockBytes = std::int64_t{1} << 19;  // FP64 logits processed at once; fits a core's cache

// Checks that per-row results are finite. A logit that is not finite makes its row NaN or infinite.
void require_finite(const at::Tensor& rows, const std::string& what, const std::string& where) {
  if (at::isfinite(rows).all().item<bool>()) return;
  throw NumericalError("the logits of " + what + " are not finite (NaN or infinity) in " + where);
}

// Rows of logits [R, V] that are processed at once.
std::int64_t rows_at_once(const at::Tensor& logits) {
  const std::int64_t rows = logits.size(0), block = logits.is_cuda() ? rows : kBlockBytes / (8 * logits.size(1));
  return std::clamp<std::int64_t>(block, 1, rows);
}

// log sum exp per row, [R].
at::Tensor normalizer(const at::Tensor& logits) {
  const at::Tensor largest = logits.amax(-1, true);
  return (logits - largest).exp_().sum(-1).log_().add_(largest.squeeze(-1));
}

// The same in the blocks of score(): the order of a sum depends on the rows of the call, since threads share a sum over
// a single row, and equal logits must have equal normalizers.
at::Tensor normalizer_in_blocks(const at::Tensor& logits) {
  std::vector<at::Tensor> blocks;
  for (const at::Tensor& block : logits.split(rows_at_once(logits))) blocks.push_back(normalizer(block));
  return at::cat(blocks);
}

}  // namespace

BaselineRows::BaselineRows(const at::Tensor& logits, std::span<const std::int32_t> targets, const std::string& where)
    : where_(where) {
  logits_ = logits.to(at::kDouble).contiguous();
  normalizer_ = normalizer_in_blocks(logits_);
  require_finite(logits_.amin(-1), "the BF16 baseline", where);
  require_finite(normalizer_, "the BF16 baseline", where);
  p_ = (logits_ - normalizer_.unsqueeze(-1)).exp_();
  top_ = logits.argmax(-1);
  targets_ = at::empty({static_cast<std::int64_t>(targets.size()), 1}, at::kLong);
  std::copy(targets.begin(), targets.end(), targets_.mutable_data_ptr<std::int64_t>());
  targets_ = targets_.to(logits.device());
  nll_ = normalizer_ - logits_.gather(1, targets_).squeeze(1);
}

// With logits l: KL(p || q) = sum p (l_p - l_q) + log sum exp l_q - log sum exp l_p. Needs one exponential per logit of
// the method, and is exactly 0 for equal logits.
void BaselineRows::score(const at::Tensor& logits, const std::string& method, SequenceScores& scores) const {
  const at::Tensor all = logits.contiguous();
  const std::int64_t rows = all.size(0), step = rows_at_once(all);
  at::Tensor kl = at::empty({rows}, logits_.options()), nll = at::empty({rows}, logits_.options());
  for (std::int64_t first = 0; first < rows; first += step) {
    const std::int64_t count = std::min(step, rows - first);
    const at::Tensor q = all.narrow(0, first, count).to(at::kDouble), sum = normalizer(q);
    nll.narrow(0, first, count).copy_(sum - q.gather(1, targets_.narrow(0, first, count)).squeeze(1));
    const at::Tensor cross = (logits_.narrow(0, first, count) - q).mul_(p_.narrow(0, first, count)).sum(-1);
    // For nearly equal distributions, rounding can make the sum slightly negative; a divergence is not negative.
    kl.narrow(0, first, count).copy_(cross.add_(sum).sub_(normalizer_.narrow(0, first, count)).clamp_min_(0.0));
  }
  require_finite(kl, "method " + method, where_);
  require_finite(nll, "method " + method, where_);
  const at::Tensor same = all.argmax(-1).eq(top_).to(at::kCPU);
  const auto append = [rows](const at::Tensor& tensor, std::vector<double>& to) {
    const at::Tensor cpu = tensor.to(at::kCPU);
    const double* data = cpu.const_data_ptr<double>();
    to.insert(to.end(), data, data + rows);
  };
  append(nll_, scores.baseline_nll);
  append(nll, scores.nll);
  append(kl, scores.kl);
  const bool* equal = same.const_data_ptr<bool>();
  for (std::int64_t r = 0; r < rows; ++r) scores.same_top.push_back(equal[r] ? 1 : 0);
}

std::int64_t rows_per_block(std::int64_t vocabulary, at::Device device) {
  // On the CPU, larger blocks exceed the caches and need newly mapped memory. With fewer rows than these, products wait
  // for the weights of the head.
  constexpr std::int64_t kLeast = 64;
  const std::int64_t bytes = device.is_cuda() ? std::int64_t{256} << 20 : std::int64_t{8} << 20;
  return std::clamp<std::int64_t>(bytes / (8 * std::max<std::int64_t>(vocabulary, 1)), kLeast, 512);
}

}  // namespace oscar
