#include "rotation/codebook_rows.h"

#include <ATen/ATen.h>

#include "base/errors.h"
#include "model/rope_phases.h"
#include "statistics/unrotation.h"

namespace oscar {

void require_rope(const Statistics& s) {
  if (s.rope_frequency.defined() && 2 * s.rope_frequency.size(0) == s.head_dim) return;
  throw InputError(
      "codebooks of keys before RoPE need one rotary embedding over all channels of every layer, and statistics of "
      "format 2 that know it, which those of " +
      s.architecture + " do not have; fit another method");
}

CodebookRows::CodebookRows(const Statistics& s, std::size_t layer, Side side, bool before_rope, std::int64_t sink,
                           std::int64_t most)
    : statistics_(s), moments_(s.layers[layer]), side_(side), before_rope_(before_rope) {
  const LayerMoments& m = moments_;
  for (std::int64_t row = 0; m.rows_k.defined() && row < m.rows_k.size(0); ++row) {
    if (most > 0 && count() >= most) break;
    if (m.row_position.empty() || m.row_position[static_cast<std::size_t>(row)] >= sink) tokens_.push_back(row);
  }
  if (!before_rope || !m.rows_k.defined()) return;
  require_rope(s);
  if (m.row_position.empty()) {
    throw InputError("the statistics do not know the positions of their sampled rows; collect them again");
  }
}

at::Tensor CodebookRows::read(std::int64_t first, std::int64_t n) const {
  const at::ArrayRef<std::int64_t> tokens(tokens_.data() + first, static_cast<std::size_t>(n));
  const at::Tensor& all = side_ == Side::kKey ? moments_.rows_k : moments_.rows_v;
  const at::Tensor rows = all.index_select(0, at::tensor(tokens, at::kLong)).to(at::kFloat);
  if (!before_rope_) return rows;
  const Statistics& s = statistics_;
  const RopeFrequencies frequencies{s.rope_frequency.to(at::kFloat).contiguous(), s.rope_scale};
  std::vector<std::int64_t> positions;
  for (const std::int64_t token : tokens) positions.push_back(moments_.row_position[static_cast<std::size_t>(token)]);
  const at::Tensor phases = phase_rows(frequencies, positions).div_(s.rope_scale * s.rope_scale).unsqueeze(1);
  const std::int64_t half = s.head_dim / 2;
  return undo_rope(rows, phases.narrow(2, 0, half), phases.narrow(2, half, half));
}

bool CodebookRows::has_gradients() const {
  return (side_ == Side::kKey ? moments_.rows_pre_k_squared_gradient : moments_.rows_v_squared_gradient).defined();
}

at::Tensor CodebookRows::gradients(std::int64_t first, std::int64_t n) const {
  if (!has_gradients()) return {};
  const at::ArrayRef<std::int64_t> tokens(tokens_.data() + first, static_cast<std::size_t>(n));
  const at::Tensor& all = side_ == Side::kKey ? moments_.rows_pre_k_squared_gradient : moments_.rows_v_squared_gradient;
  return all.index_select(0, at::tensor(tokens, at::kLong));
}

}  // namespace oscar
