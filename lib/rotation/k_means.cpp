#include "rotation/k_means.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "base/errors.h"
#include "base/interrupt.h"
#include "base/random.h"
#include "rotation/codebook.h"

namespace oscar {
namespace {

constexpr std::int64_t kSettled = 500;

// Index of the point at which the running sum of `distance` passes `share` of the total; any point where all are zero.
std::int64_t drawn(const std::vector<float>& distance, double total, double share) {
  const auto count = static_cast<std::int64_t>(distance.size());
  if (!(total > 0.0)) return std::min(static_cast<std::int64_t>(share * static_cast<double>(count)), count - 1);
  double sum = 0.0;
  for (std::int64_t n = 0; n < count; ++n) {
    sum += distance[static_cast<std::size_t>(n)];
    if (sum > share * total) return n;
  }
  return count - 1;
}

// k-means++ of one problem. columns: [c, N], so that a loop over points is one over neighbours in memory.
void choose_seeds(const float* columns, std::int64_t count, std::int64_t channels, std::int64_t wanted,
                  std::uint64_t seed, std::uint64_t stream, std::int64_t* chosen) {
  std::vector<float> nearest(static_cast<std::size_t>(count), std::numeric_limits<float>::max());
  std::vector<float> distance(static_cast<std::size_t>(count));
  double total = 0.0;
  for (std::int64_t k = 0; k < wanted; ++k) {
    const double share = random_unit(seed, stream, static_cast<std::uint64_t>(k));
    const std::int64_t at = drawn(nearest, k == 0 ? 0.0 : total, share);
    chosen[k] = at;
    std::fill(distance.begin(), distance.end(), 0.0f);
    for (std::int64_t c = 0; c < channels; ++c) {
      const float* row = columns + c * count;
      const float centre = row[at];
      for (std::int64_t n = 0; n < count; ++n) {
        const float difference = row[n] - centre;
        distance[static_cast<std::size_t>(n)] += difference * difference;
      }
    }
    total = 0.0;
    for (std::size_t n = 0; n < nearest.size(); ++n) {
      nearest[n] = std::min(nearest[n], distance[n]);
      total += nearest[n];
    }
  }
}

// Seeds of each problem. points: [B, N, c] on the CPU, as distances see them. [B, C] int64.
at::Tensor seeds(const at::Tensor& points, std::int64_t wanted, std::uint64_t seed) {
  const std::int64_t batch = points.size(0), count = points.size(1), channels = points.size(2);
  const at::Tensor columns = points.transpose(1, 2).contiguous();
  at::Tensor chosen = at::empty({batch, wanted}, at::kLong);
  const auto* from = columns.const_data_ptr<float>();
  auto* to = chosen.mutable_data_ptr<std::int64_t>();
  at::parallel_for(0, batch, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      choose_seeds(from + b * count * channels, count, channels, wanted, seed, static_cast<std::uint64_t>(b),
                   to + b * wanted);
    }
  });
  return chosen;
}

// Means of the points of each label, in place; a centroid without points stays. weights [B, N] or undefined. All on the
// CPU, contiguous.
void move_to_means(const at::Tensor& points, const at::Tensor& labels, const at::Tensor& weights,
                   at::Tensor& centroids) {
  const std::int64_t count = points.size(1), channels = points.size(2), size = centroids.size(1);
  at::parallel_for(0, points.size(0), 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<double> sums(static_cast<std::size_t>(size * channels));
    std::vector<double> members(static_cast<std::size_t>(size));
    for (std::int64_t b = begin; b < end; ++b) {
      std::fill(sums.begin(), sums.end(), 0.0);
      std::fill(members.begin(), members.end(), 0.0);
      const float* point = points.const_data_ptr<float>() + b * count * channels;
      const std::int64_t* label = labels.const_data_ptr<std::int64_t>() + b * count;
      const float* weight = weights.defined() ? weights.const_data_ptr<float>() + b * count : nullptr;
      for (std::int64_t n = 0; n < count; ++n, point += channels) {
        const double w = weight == nullptr ? 1.0 : weight[n];
        members[static_cast<std::size_t>(label[n])] += w;
        double* sum = sums.data() + label[n] * channels;
        for (std::int64_t c = 0; c < channels; ++c) sum[c] += w * point[c];
      }
      float* mean = centroids.mutable_data_ptr<float>() + b * size * channels;
      for (std::int64_t k = 0; k < size; ++k) {
        const double n = members[static_cast<std::size_t>(k)];
        for (std::int64_t c = 0; n > 0.0 && c < channels; ++c) {
          mean[k * channels + c] = static_cast<float>(sums[static_cast<std::size_t>(k * channels + c)] / n);
        }
      }
    }
  });
}

}  // namespace

at::Tensor k_means(const at::Tensor& points, std::int64_t wanted, const at::Tensor& weights,
                   const KMeansOptions& options) {
  const at::Tensor host = points.to(at::kCPU, at::kFloat).contiguous();
  at::Tensor point_weights = options.point_weights;
  if (point_weights.defined()) point_weights = point_weights.to(at::kCPU, at::kFloat).contiguous();
  at::Tensor root;  // [B, 1, c]
  if (weights.defined()) root = weights.to(at::kCPU, at::kFloat).sqrt().unsqueeze(1);
  const auto weighed = [&](const at::Tensor& x) { return root.defined() ? x * root : x; };
  const at::Tensor seen = weighed(host), on_device = seen.to(points.device());
  const at::Tensor first = seeds(seen, wanted, options.seed);
  at::Tensor centroids = host.gather(1, first.unsqueeze(2).expand({-1, -1, host.size(2)})).contiguous();
  at::Tensor labels;
  for (std::int64_t step = 0; step < options.steps; ++step) {
    if (interrupt_requested()) throw InterruptedError("interrupted; nothing was written, run the same command again");
    const at::Tensor found = nearest_centroids(on_device, weighed(centroids).to(points.device())).cpu().contiguous();
    const bool settled = labels.defined() && kSettled * found.ne(labels).sum().item<std::int64_t>() <= found.numel();
    labels = found;
    move_to_means(host, labels, point_weights, centroids);
    if (settled) break;
  }
  return centroids;
}

}  // namespace oscar
