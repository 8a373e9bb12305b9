#include "collect/unrotation.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "model/rope_phases.h"

namespace oscar {

at::Tensor undo_rope(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const std::int64_t pairs = cos.size(-1), rest = x.size(-1) - 2 * pairs;
  const at::Tensor wide = x.to(at::kFloat);
  const at::Tensor first = wide.narrow(-1, 0, pairs), second = wide.narrow(-1, pairs, pairs);
  at::Tensor out = at::empty_like(wide, at::MemoryFormat::Contiguous);
  at::Tensor out_first = out.narrow(-1, 0, pairs), out_second = out.narrow(-1, pairs, pairs);
  at::mul_out(out_first, first, cos).addcmul_(second, sin);
  at::mul_out(out_second, second, cos).addcmul_(first, sin, -1);
  if (rest > 0) out.narrow(-1, 2 * pairs, rest).copy_(wide.narrow(-1, 2 * pairs, rest));
  return out;
}

Unrotation::Unrotation(const RopeFrequencies& frequencies, at::Device device)
    : frequencies_(frequencies), device_(device) {
  frequencies_.inverse = frequencies_.inverse.contiguous();
}

const Unrotation::Rows& Unrotation::rows_of(const SequenceBatch& batch) {
  if (rows_.cos.defined() && batch.starts == starts_ && batch.lengths == lengths_) return rows_;
  std::int64_t end = 0;
  for (std::size_t i = 0; i < batch.lengths.size(); ++i) end = std::max(end, batch.starts[i] + batch.lengths[i]);
  if (!table_.cos.defined() || table_.cos.size(0) < end) {
    std::vector<std::int64_t> positions(static_cast<std::size_t>(end));
    std::iota(positions.begin(), positions.end(), 0);
    const std::int64_t pairs = frequencies_.inverse.size(0);
    // phase_rows() includes the attention factor, and so do the rows with RoPE applied.
    const double squared = frequencies_.attention_factor * frequencies_.attention_factor;
    const at::Tensor rope_phases = phase_rows(frequencies_, positions).div_(squared).to(device_);
    table_ = {rope_phases.narrow(1, 0, pairs).contiguous(), rope_phases.narrow(1, pairs, pairs).contiguous()};
  }
  std::vector<at::Tensor> cos, sin;
  for (std::size_t i = 0; i < batch.lengths.size(); ++i) {
    cos.push_back(table_.cos.narrow(0, batch.starts[i], batch.lengths[i]));
    sin.push_back(table_.sin.narrow(0, batch.starts[i], batch.lengths[i]));
  }
  rows_ = {at::cat(cos), at::cat(sin)};
  starts_ = batch.starts;
  lengths_ = batch.lengths;
  return rows_;
}

}  // namespace oscar
