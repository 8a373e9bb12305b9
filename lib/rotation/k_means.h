// Weighted k-means of many small problems side by side.
#pragma once

#include <ATen/core/Tensor.h>

#include <c10/core/Device.h>

#include <cstdint>

#include "rotation/point_source.h"

namespace oscar {

struct KMeansOptions {
  std::uint64_t seed = 0;
  at::Tensor point_weights = {};  // [B, N] F32, not negative, of the points in the means; undefined: 1
  std::int64_t steps = 30;  // of Lloyd at most (OSCAR's fork takes as many); fewer where at most one point in 500 moves
};

// Seeds are drawn from the first so many points of each problem, and these tell when points have settled: 64 for each
// of 1,024 centroids. What is held of further points is one piece.
inline constexpr std::int64_t kWatchedPoints = 65536;

// points [B, N, c] F32; weights [B, c], not negative, of the channels in the distance; undefined: 1. Returns [B, C, c]
// F32: means of the points nearest to them.
//
// Seeds are drawn as k-means++ draws them (Arthur and Vassilvitskii 2007), steps are Lloyd's. A centroid that no point
// is nearest to, or points without weight alone, stays where it is. Weights of channels move the borders between
// centroids and not the means; weights of points move the means alone: sum_n w_n |x_n - c(n)|^2 falls with each step
// (CQ, arXiv 2405.03917, whose weights are sums of squared gradients). On the CPU the result depends on the arguments
// alone; on a GPU borders are subject to the rounding of its products.
at::Tensor k_means(const at::Tensor& points, std::int64_t centroids, const at::Tensor& weights,
                   const KMeansOptions& options);

// The same over points in pieces, with the weights of points that these have; distances on `device`. On the CPU the
// size of the pieces changes no bit: sums run in the order of the points.
at::Tensor k_means(const PointSource& points, std::int64_t centroids, const at::Tensor& weights,
                   const KMeansOptions& options, c10::Device device);

}  // namespace oscar
