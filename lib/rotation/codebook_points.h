// Sampled rows in the basis of a codebook, as points of k-means, in pieces.
#pragma once

#include <c10/core/Device.h>

#include "registry/codebook_spec.h"
#include "rotation/codebook.h"
#include "rotation/codebook_rows.h"
#include "rotation/point_source.h"
#include "rotation/transform.h"

namespace oscar {

// Groups of rows divided by their scale (points_of() of codebook.h). Weights are the squared gradients of a group's
// channels together: CQ's approximation, which TaSQ has taken over.
class CodebookPoints : public PointSource {
 public:
  // All must outlive it. buffer: bytes of rows to hold at a time; a piece has at least kPointsAtOnce rows. No number
  // depends on it, because rows are transformed in blocks of kPointsAtOnce.
  CodebookPoints(const CodebookRows& rows, const SideTransform& transform, Side side, const CodebookSide& spec,
                 bool gradients, std::int64_t buffer);

  std::int64_t count() const override { return rows_.count() * rows_each_; }
  std::int64_t piece() const override { return piece_ * rows_each_; }
  Points read(std::int64_t first, std::int64_t n) const override;

 private:
  Points block(std::int64_t first, std::int64_t n) const;  // of rows

  const CodebookRows& rows_;
  const SideTransform& transform_;
  Side side_;
  const CodebookSide& spec_;
  bool gradients_;
  std::int64_t rows_each_, piece_;  // points of a row in one problem; rows of a piece
};

// What the nearest centroids of a codebook [S, G, C, c] leave of points, with their weights.
class ResidualPoints : public PointSource {
 public:
  ResidualPoints(const PointSource& points, at::Tensor codebook, c10::Device device)
      : points_(points), codebook_(std::move(codebook)), device_(device) {}
  std::int64_t count() const override { return points_.count(); }
  std::int64_t piece() const override { return points_.piece(); }
  Points read(std::int64_t first, std::int64_t n) const override;

 private:
  const PointSource& points_;
  at::Tensor codebook_;
  c10::Device device_;
};

// Codebook::errors and Codebook::profile: what both stages leave of the points in each cell, a mean over points and
// channels, as 16-bit floats hold it. Cells of few points say little: each counts as if it had kPriorPoints more with
// the mean of its group.
inline constexpr double kPriorPoints = 8;
void set_errors(Codebook& codebook, const PointSource& points, c10::Device device);

}  // namespace oscar
