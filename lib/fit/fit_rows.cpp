#include "fit/fit_rows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
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

CheckRows check_rows_of(const Statistics& s) {
  CheckRows rows;
  const LayerMoments& first = s.layers.front();
  if (!first.rows_q.defined() || first.row_position.empty()) return rows;
  const std::int64_t row = 2 * s.head_dim * std::ssize(s.layers);  // bytes of a head, BF16
  const std::int64_t room = (kMostCheckBytes - kCheckQueries * s.query_heads * row) / (2 * s.kv_heads * row + 8);
  const std::int64_t count = std::min({kMostCheckRows, room, std::ssize(first.row_position)});
  if (count < 1) return rows;
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  const auto position = [&](std::int64_t i) { return first.row_position[static_cast<std::size_t>(i)]; };
  std::stable_sort(order.begin(), order.end(), [&](auto a, auto b) { return position(a) < position(b); });
  for (const std::int64_t i : order) rows.positions.push_back(position(i));
  const at::Tensor all = at::tensor(at::ArrayRef<std::int64_t>(order), at::kLong);
  const at::Tensor newest = all.slice(0, std::max<std::int64_t>(0, count - kCheckQueries));
  const auto picked = [](const at::Tensor& x, const at::Tensor& at) {
    return x.index_select(0, at).to(at::kBFloat16).contiguous();
  };
  for (std::size_t i = 0; i < s.layers.size(); ++i) {
    const LayerMoments& layer = s.layers[i];
    rows.layers.push_back({s.number(i), picked(layer.rows_q, newest), picked(layer.rows_k, all),
                           s.rope_dim > 0 ? at::Tensor() : picked(layer.rows_v, all)});
  }
  return rows;
}

}  // namespace oscar
