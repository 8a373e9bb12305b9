#include "fit/fit_rows.h"

#include <ATen/ATen.h>

#include <vector>

#include "model/rope_phases.h"

namespace oscar {
namespace {

at::Tensor pick(const at::Tensor& rows, const std::vector<std::int64_t>& tokens) {
  return rows.index_select(0, at::tensor(at::ArrayRef<std::int64_t>(tokens), at::kLong));
}

// Undefined if the statistics lack positions or frequencies.
at::Tensor phases_of(const Statistics& s, const LayerMoments& m, const std::vector<std::int64_t>& tokens) {
  if (!s.rope_frequency.defined() || m.row_position.empty()) return {};
  const RopeFrequencies frequencies{s.rope_frequency.to(at::kFloat).contiguous(), s.rope_scale};
  std::vector<std::int64_t> positions;
  for (const std::int64_t token : tokens) positions.push_back(m.row_position[static_cast<std::size_t>(token)]);
  return phase_rows(frequencies, positions);
}

RowSet take(const LayerMoments& m, const std::vector<std::int64_t>& tokens, std::int64_t kv_heads) {
  const auto n = static_cast<std::int64_t>(tokens.size());
  const std::int64_t d = m.rows_k.size(2);
  const std::int64_t gqa_group = m.rows_q.size(1) / kv_heads;
  RowSet set;
  set.q = pick(m.rows_q, tokens).reshape({n, kv_heads, gqa_group, d}).permute({1, 0, 2, 3}).reshape({kv_heads, -1, d});
  set.q = set.q.contiguous();
  set.k = pick(m.rows_k, tokens).transpose(0, 1).contiguous();
  set.v = pick(m.rows_v, tokens).transpose(0, 1).contiguous();
  return set;
}

}  // namespace

LayerRows split_rows(const Statistics& statistics, std::size_t layer, std::int64_t sink, std::int64_t max_rows) {
  const LayerMoments& m = statistics.layers[layer];
  if (!m.rows_k.defined()) return {};
  std::vector<std::int64_t> fit, held_out;
  for (std::int64_t row = 0; row < m.rows_k.size(0); ++row) {
    if (static_cast<std::int64_t>(fit.size() + held_out.size()) >= max_rows) break;
    if (!m.row_position.empty() && m.row_position[static_cast<std::size_t>(row)] < sink) continue;
    (fit.size() <= held_out.size() ? fit : held_out).push_back(row);
  }
  if (held_out.empty()) return {};
  LayerRows rows{take(m, fit, statistics.kv_heads), take(m, held_out, statistics.kv_heads)};
  rows.fit.rope_phases = phases_of(statistics, m, fit);
  rows.held_out.rope_phases = phases_of(statistics, m, held_out);
  return rows;
}

}  // namespace oscar
