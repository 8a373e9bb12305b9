#include "fit/check_rows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

namespace oscar {

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
    rows.layers.push_back(
        {s.number(i), picked(layer.rows_q, newest), picked(layer.rows_k, all), picked(layer.rows_v, all)});
  }
  return rows;
}

}  // namespace oscar
