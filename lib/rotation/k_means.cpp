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

// Sums of the points of each label, in the order of the points, and what centroids become by them.
class Means {
 public:
  Means(std::int64_t batch, std::int64_t size, std::int64_t channels)
      : sums_(at::zeros({batch, size, channels}, at::kDouble)), members_(at::zeros({batch, size}, at::kDouble)) {}

  // piece: contiguous; labels [B, n] int64 contiguous.
  void add(const Points& piece, const at::Tensor& labels) {
    const std::int64_t count = piece.points.size(1), channels = piece.points.size(2), size = members_.size(1);
    at::parallel_for(0, piece.points.size(0), 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t b = begin; b < end; ++b) {
        const float* point = piece.points.const_data_ptr<float>() + b * count * channels;
        const std::int64_t* label = labels.const_data_ptr<std::int64_t>() + b * count;
        const float* weight = piece.weights.defined() ? piece.weights.const_data_ptr<float>() + b * count : nullptr;
        double* sums = sums_.mutable_data_ptr<double>() + b * size * channels;
        double* members = members_.mutable_data_ptr<double>() + b * size;
        for (std::int64_t n = 0; n < count; ++n, point += channels) {
          const double w = weight == nullptr ? 1.0 : weight[n];
          members[label[n]] += w;
          double* sum = sums + label[n] * channels;
          for (std::int64_t c = 0; c < channels; ++c) sum[c] += w * point[c];
        }
      }
    });
  }

  // A centroid without points, or with points without weight alone, stays.
  void move(at::Tensor& centroids) const {
    const at::Tensor filled = members_.gt(0.0).unsqueeze(2);
    centroids = at::where(filled, (sums_ / members_.unsqueeze(2)).to(at::kFloat), centroids).contiguous();
  }

 private:
  at::Tensor sums_, members_;  // [B, C, c], [B, C]
};

Points contiguous(Points piece) {
  piece.points = piece.points.to(at::kCPU, at::kFloat).contiguous();
  if (piece.weights.defined()) piece.weights = piece.weights.to(at::kCPU, at::kFloat).contiguous();
  return piece;
}

// The first points of each problem, [B, n, c].
at::Tensor first_points(const PointSource& source, const Points* whole, std::int64_t n) {
  if (whole != nullptr) return whole->points.narrow(1, 0, n);
  std::vector<at::Tensor> pieces;
  for (std::int64_t first = 0; first < n; first += source.piece()) {
    const std::int64_t count = std::min(source.piece(), source.count() - first);
    pieces.push_back(source.read(first, count).points.narrow(1, 0, std::min(count, n - first)));
  }
  return at::cat(pieces, 1);
}

}  // namespace

at::Tensor k_means(const at::Tensor& points, std::int64_t wanted, const at::Tensor& weights,
                   const KMeansOptions& options) {
  return k_means(TensorPoints({points.to(at::kCPU, at::kFloat), options.point_weights}), wanted, weights, options,
                 points.device());
}

at::Tensor k_means(const PointSource& source, std::int64_t wanted, const at::Tensor& weights,
                   const KMeansOptions& options, c10::Device device) {
  const bool in_one = source.piece() >= source.count();
  Points whole;
  if (in_one) whole = contiguous(source.read(0, source.count()));
  const Points* known = in_one ? &whole : nullptr;
  at::Tensor root;  // [B, 1, c]
  if (weights.defined()) root = weights.to(at::kCPU, at::kFloat).sqrt().unsqueeze(1);
  const auto seen = [&](const at::Tensor& x) { return (root.defined() ? x * root : x).to(device); };
  at::Tensor whole_seen;
  if (in_one) whole_seen = seen(whole.points);

  const std::int64_t watched = std::min(source.count(), kWatchedPoints);
  at::Tensor centroids, labels;
  {
    const at::Tensor sample = first_points(source, known, watched).to(at::kCPU, at::kFloat).contiguous();
    const at::Tensor first = seeds(root.defined() ? sample * root : sample, wanted, options.seed);
    centroids = sample.gather(1, first.unsqueeze(2).expand({-1, -1, sample.size(2)})).contiguous();
    labels = at::full({sample.size(0), watched}, -1, at::kLong);
  }
  for (std::int64_t step = 0; step < options.steps; ++step) {
    Means means(centroids.size(0), wanted, centroids.size(2));
    const at::Tensor seen_centroids = seen(centroids);
    std::int64_t moved = 0;
    source.for_each_piece(known, [&](std::int64_t first, const Points& read) {
      if (interrupt_requested()) throw InterruptedError("interrupted; nothing was written, run the same command again");
      const Points piece = in_one ? read : contiguous(read);
      const at::Tensor points = in_one ? whole_seen : seen(piece.points);
      const at::Tensor found = nearest_centroids(points, seen_centroids).cpu().contiguous();
      means.add(piece, found);
      const std::int64_t n = std::min(watched - first, found.size(1));
      if (n <= 0) return;
      at::Tensor before = labels.narrow(1, first, n);
      moved += found.narrow(1, 0, n).ne(before).sum().item<std::int64_t>();
      before.copy_(found.narrow(1, 0, n));
    });
    means.move(centroids);
    if (step > 0 && kSettled * moved <= labels.numel()) break;
  }
  return centroids;
}

}  // namespace oscar
