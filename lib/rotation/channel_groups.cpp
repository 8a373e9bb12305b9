#include "rotation/channel_groups.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/random.h"

namespace oscar {
namespace {

constexpr double kRidge = 1e-4;
constexpr std::int64_t kKicks = 4000;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Nodes = std::vector<std::int64_t>;

std::size_t at_index(std::int64_t i) { return static_cast<std::size_t>(i); }

class Costs {
 public:
  explicit Costs(const at::Tensor& cost) : cost_(cost.to(at::kDouble).contiguous()), n_(cost.size(0)) {}
  double operator()(std::int64_t i, std::int64_t j) const { return cost_.const_data_ptr<double>()[i * n_ + j]; }
  std::int64_t nodes() const { return n_; }

 private:
  at::Tensor cost_;
  std::int64_t n_;
};

// The cheapest assignment of every node to another one, by shortest augmenting paths with duals (Kuhn 1955; Jonker and
// Volgenant 1987). A matching taken both ways is such an assignment of twice its cost: half of the least is a bound.
double assignment_bound(const Costs& cost) {
  const std::int64_t n = cost.nodes();
  std::vector<double> row_dual(at_index(n + 1), 0.0), column_dual(at_index(n + 1), 0.0);
  Nodes row_of(at_index(n + 1), n);  // of each column; n: none. Column n is where a new row starts.
  for (std::int64_t row = 0; row < n; ++row) {
    std::vector<double> least(at_index(n + 1), kInfinity);
    Nodes before(at_index(n + 1), n);
    std::vector<bool> done(at_index(n + 1), false);
    std::int64_t column = n;
    row_of[at_index(n)] = row;
    while (row_of[at_index(column)] != n) {
      done[at_index(column)] = true;
      const std::int64_t i = row_of[at_index(column)];
      std::int64_t next = n;
      double step = kInfinity;
      for (std::int64_t j = 0; j < n; ++j) {
        if (done[at_index(j)]) continue;
        const double reduced = (i == j ? kInfinity : cost(i, j)) - row_dual[at_index(i)] - column_dual[at_index(j)];
        if (reduced < least[at_index(j)]) least[at_index(j)] = reduced, before[at_index(j)] = column;
        if (least[at_index(j)] < step) step = least[at_index(j)], next = j;
      }
      for (std::int64_t j = 0; j <= n; ++j) {
        if (done[at_index(j)]) {
          row_dual[at_index(row_of[at_index(j)])] += step, column_dual[at_index(j)] -= step;
        } else {
          least[at_index(j)] -= step;
        }
      }
      column = next;
    }
    for (; column != n; column = before[at_index(column)]) {
      row_of[at_index(column)] = row_of[at_index(before[at_index(column)])];
    }
    row_of[at_index(n)] = n;
  }
  double total = 0.0;
  for (std::int64_t j = 0; j < n; ++j) total += cost(row_of[at_index(j)], j);
  return 0.5 * total;
}

double cost_of(const Costs& cost, const Nodes& order) {
  double total = 0.0;
  for (std::size_t i = 0; i + 1 < order.size(); i += 2) total += cost(order[i], order[i + 1]);
  return total;
}

// Nodes 2i and 2i + 1 of `order` are a pair. Two pairs swap partners as long as that is cheaper.
void improve(const Costs& cost, Nodes& order) {
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t i = 0; i + 1 < order.size(); i += 2) {
      for (std::size_t j = i + 2; j + 1 < order.size(); j += 2) {
        const double now = cost(order[i], order[i + 1]) + cost(order[j], order[j + 1]);
        const double crossed = cost(order[i], order[j]) + cost(order[i + 1], order[j + 1]);
        const double turned = cost(order[i], order[j + 1]) + cost(order[i + 1], order[j]);
        if (std::min(crossed, turned) >= now - 1e-12 * std::abs(now)) continue;
        std::swap(order[i + 1], crossed <= turned ? order[j] : order[j + 1]);
        changed = true;
      }
    }
  }
}

Nodes greedy(const Costs& cost) {
  Nodes left(at_index(cost.nodes())), order;
  std::iota(left.begin(), left.end(), 0);
  while (!left.empty()) {
    std::size_t best_i = 0, best_j = 1;
    for (std::size_t i = 0; i < left.size(); ++i) {
      for (std::size_t j = i + 1; j < left.size(); ++j) {
        if (cost(left[i], left[j]) < cost(left[best_i], left[best_j])) best_i = i, best_j = j;
      }
    }
    order.push_back(left[best_i]), order.push_back(left[best_j]);
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(best_j));
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(best_i));
  }
  return order;
}

// log det of the covariance of each set of channels, over their number. sets: [M, m].
at::Tensor log_volumes(const at::Tensor& covariance, const at::Tensor& sets) {
  const std::int64_t m = sets.size(1);
  const at::Tensor rows = covariance.index_select(0, sets.reshape({-1})).view({sets.size(0), m, covariance.size(0)});
  const at::Tensor blocks = rows.gather(2, sets.unsqueeze(1).expand({-1, m, -1}));
  return std::get<1>(at::linalg_slogdet(blocks)) / static_cast<double>(m);
}

}  // namespace

std::vector<std::int64_t> dealt_channels(const at::Tensor& variances, std::int64_t size) {
  const std::int64_t d = variances.size(0), groups = d / size;
  const at::Tensor sorted = std::get<1>(variances.sort(/*stable=*/true, 0, true)).contiguous();
  const at::Tensor logs = variances.clamp_min(1e-300).log();
  const at::Tensor sizes = (logs - logs.min()).contiguous();  // not negative: a fuller group never looks emptier
  std::vector<Nodes> members(at_index(groups));
  std::vector<double> sums(at_index(groups), 0.0);
  for (std::int64_t i = 0; i < d; ++i) {
    const std::int64_t channel = sorted.const_data_ptr<std::int64_t>()[i];
    std::size_t best = members.size();
    for (std::size_t g = 0; g < members.size(); ++g) {
      const bool room = static_cast<std::int64_t>(members[g].size()) < size;
      if (room && (best == members.size() || sums[g] < sums[best])) best = g;
    }
    members[best].push_back(channel);
    sums[best] += sizes.const_data_ptr<double>()[channel];
  }
  Nodes order;
  for (const Nodes& group : members) order.insert(order.end(), group.begin(), group.end());
  return order;
}

// A local search, because the sizes are small (at most d/2 = 128 pairs) and the exact algorithm (Edmonds' blossoms with
// weights) would be the longest file of this library for what `bound` shows to be within a per cent or so.
PairMatching match_pairs(const at::Tensor& matrix) {
  const Costs cost(matrix);
  Nodes best = greedy(cost);
  improve(cost, best);
  PairMatching result;
  result.bound = assignment_bound(cost);
  result.cost = cost_of(cost, best);
  const std::int64_t pairs = cost.nodes() / 2;
  for (std::int64_t kick = 0; kick < kKicks && pairs > 2; ++kick) {
    if (result.cost <= result.bound + 1e-12 * std::abs(result.bound)) break;  // proven best
    Nodes tried = best;
    for (std::uint64_t i = 0; i < 3; ++i) {  // three partners change places at random, then the search goes on
      const auto pick = [&](std::uint64_t n) {
        return static_cast<std::size_t>(random_bits(0, static_cast<std::uint64_t>(kick), n) % tried.size());
      };
      std::swap(tried[pick(2 * i)], tried[pick(2 * i + 1)]);
    }
    improve(cost, tried);
    const double now = cost_of(cost, tried);
    if (now < result.cost) best = tried, result.cost = now;
  }
  for (std::size_t i = 0; i + 1 < best.size(); i += 2) {
    result.pairs.emplace_back(std::min(best[i], best[i + 1]), std::max(best[i], best[i + 1]));
  }
  std::sort(result.pairs.begin(), result.pairs.end());
  return result;
}

std::vector<std::int64_t> matched_channels(const at::Tensor& covariance, std::int64_t size) {
  const std::int64_t d = covariance.size(0);
  const at::Tensor ridge = at::eye(d, at::kDouble) * (kRidge * covariance.diagonal().mean());
  const at::Tensor damped = covariance.to(at::kDouble) + ridge;
  std::vector<Nodes> groups;
  for (std::int64_t i = 0; i < d / 2; ++i) groups.push_back({i, i + d / 2});
  while (static_cast<std::int64_t>(groups.front().size()) < size) {
    const auto n = static_cast<std::int64_t>(groups.size());
    std::vector<std::int64_t> flat;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      for (std::size_t j = 0; j < groups.size(); ++j) {
        flat.insert(flat.end(), groups[i].begin(), groups[i].end());
        // A group beside itself is no pair; any other one keeps the matrix regular.
        const Nodes& other = groups[i == j ? (j + 1) % groups.size() : j];
        flat.insert(flat.end(), other.begin(), other.end());
      }
    }
    const at::Tensor sets = at::tensor(at::ArrayRef<std::int64_t>(flat), at::kLong).view({n * n, -1});
    const at::Tensor volumes = log_volumes(damped, sets).view({n, n}).exp();
    std::vector<Nodes> joined;
    for (const auto& [a, b] : match_pairs((volumes + volumes.t()) * 0.5).pairs) {
      joined.push_back(groups[at_index(a)]);
      joined.back().insert(joined.back().end(), groups[at_index(b)].begin(), groups[at_index(b)].end());
    }
    groups = std::move(joined);
  }
  Nodes order;
  for (const Nodes& group : groups) order.insert(order.end(), group.begin(), group.end());
  return order;
}

}  // namespace oscar
