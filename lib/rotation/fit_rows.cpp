#include "rotation/fit_rows.h"

#include <ATen/ATen.h>

#include <vector>

namespace oscar {
namespace {

at::Tensor pick(const at::Tensor& rows, const std::vector<std::int64_t>& tokens) {
  return rows.index_select(0, at::tensor(at::ArrayRef<std::int64_t>(tokens), at::kLong));
}

RowSet take(const LayerMoments& m, const std::vector<std::int64_t>& tokens, std::int64_t kv_heads) {
  const auto n = static_cast<std::int64_t>(tokens.size());
  const std::int64_t d = m.rows_k.size(2);
  const std::int64_t group = m.rows_q.size(1) / kv_heads;
  RowSet set;
  set.q = pick(m.rows_q, tokens).reshape({n, kv_heads, group, d}).permute({1, 0, 2, 3}).reshape({kv_heads, -1, d});
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
  return {take(m, fit, statistics.kv_heads), take(m, held_out, statistics.kv_heads)};
}

}  // namespace oscar
