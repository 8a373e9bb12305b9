// Points of k-means problems, read in pieces, so that memory does not grow with their number.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

namespace oscar {

struct Points {
  at::Tensor points;   // [B, n, c] F32 on the CPU: B problems side by side
  at::Tensor weights;  // [B, n] F32, not negative, of the points in means; undefined: 1
};

class PointSource {
 public:
  virtual ~PointSource() = default;
  virtual std::int64_t count() const = 0;  // points of each problem
  // Points of a piece, a multiple of kPointsAtOnce (codebook.h); the last piece may be shorter.
  virtual std::int64_t piece() const = 0;
  virtual Points read(std::int64_t first, std::int64_t n) const = 0;  // n: a piece, or what is left

  // f(first, points) of each piece in order; one that is all there is was read before and is given as `whole`.
  template <typename F>
  void for_each_piece(const Points* whole, const F& f) const {
    if (whole != nullptr) return f(std::int64_t{0}, *whole);
    for (std::int64_t first = 0; first < count(); first += piece()) {
      f(first, read(first, std::min(piece(), count() - first)));
    }
  }
};

// Points that are all in memory.
class TensorPoints : public PointSource {
 public:
  explicit TensorPoints(Points all) : all_(std::move(all)) {}
  std::int64_t count() const override { return all_.points.size(1); }
  std::int64_t piece() const override { return count(); }
  Points read(std::int64_t, std::int64_t) const override { return all_; }

 private:
  Points all_;
};

}  // namespace oscar
