// Codebooks are learned from rows in pieces, and no bit depends on how large these are.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>

#include "registry/registry.h"
#include "rotation/codebook_points.h"
#include "rotation/fit.h"
#include "rotation/k_means.h"
#include "rotation/made_statistics.h"

namespace oscar {
namespace {

// More rows than the largest piece of the small buffer, and not a multiple of any.
Statistics statistics_of_rows(std::int64_t rows, bool gradients) {
  at::manual_seed(5);
  const MadeRows made = random_made_rows(rows, 4, 2, 16);
  Statistics s = made_statistics({made});
  LayerMoments& layer = s.layers[0];
  layer.rows_q = made.q.to(at::kFloat), layer.rows_k = made.k.to(at::kFloat), layer.rows_v = made.v.to(at::kFloat);
  layer.row_priority.clear(), layer.row_position.clear();
  for (std::int64_t i = 0; i < rows; ++i) {
    layer.row_priority.push_back(static_cast<std::uint64_t>(i)), layer.row_position.push_back(64 + i);
  }
  if (gradients)
    layer.rows_pre_k_squared_gradient = at::rand(made.k.sizes()),
    layer.rows_v_squared_gradient = at::rand(made.v.sizes());
  return s;
}

LayerTransform fitted(const Statistics& s, const char* method, std::int64_t buffer) {
  FitOptions o;
  o.method = method, o.row_buffer = buffer, o.max_rows = 64;
  return fit(s, o).layers[0].transform;
}

void expect_equal(const Codebook& a, const Codebook& b, const char* what) {
  EXPECT_TRUE(at::equal(a.first, b.first)) << what;
  ASSERT_EQ(a.second.defined(), b.second.defined()) << what;
  if (a.second.defined()) {
    EXPECT_TRUE(at::equal(a.second, b.second)) << what;
  }
  ASSERT_EQ(a.errors.defined(), b.errors.defined()) << what;
  if (a.errors.defined()) {
    EXPECT_TRUE(at::equal(a.errors, b.errors) && at::equal(a.profile, b.profile)) << what;
  }
}

TEST(CodebookStream, ASmallBufferGivesTheBytesOfALargeOne) {
  const Statistics s = statistics_of_rows(2100, true);
  for (const char* method : {"cq8x8", "nova", "rvq1.5"}) {
    const LayerTransform small = fitted(s, method, 1), large = fitted(s, method, std::int64_t{1} << 30);
    expect_equal(*small.key.codebook, *large.key.codebook, method);
    ASSERT_EQ(small.value.codebook != nullptr, large.value.codebook != nullptr);
    if (small.value.codebook) expect_equal(*small.value.codebook, *large.value.codebook, method);
  }
}

TEST(CodebookStream, PiecesHoldWhatTheBufferAllows) {
  const Statistics s = statistics_of_rows(2500, false);
  const CodebookRows rows(s, 0, Side::kValue, false, 0, 0);
  SideTransform plain;
  plain.forward = at::eye(16).unsqueeze(0);
  CodebookSide spec{.channels = 8, .centroids = 256};
  const std::int64_t row_bytes = 2 * 16 * 4;
  EXPECT_EQ(CodebookPoints(rows, plain, Side::kValue, spec, false, 1).piece(), kPointsAtOnce);
  EXPECT_EQ(CodebookPoints(rows, plain, Side::kValue, spec, false, 1000 * row_bytes).piece(), 3 * kPointsAtOnce);
  spec.shared = true;
  EXPECT_EQ(CodebookPoints(rows, plain, Side::kValue, spec, false, 1000 * row_bytes).piece(), 6 * kPointsAtOnce);
}

// Points that are more than those watched, and never asked for more than a piece at a time.
class Counted : public PointSource {
 public:
  explicit Counted(at::Tensor points) : points_(std::move(points)) {}
  std::int64_t count() const override { return points_.size(1); }
  std::int64_t piece() const override { return 8 * kPointsAtOnce; }
  Points read(std::int64_t first, std::int64_t n) const override {
    EXPECT_LE(n, piece());
    return {points_.narrow(1, first, n), {}};
  }

 private:
  at::Tensor points_;
};

TEST(CodebookStream, PointsBehindTheWatchedOnesCountInTheMeans) {
  at::manual_seed(6);
  // Behind the watched points the clusters at -1 and 1 lie at -3 and 3.
  const std::int64_t n = kWatchedPoints;
  const at::Tensor sign = at::where(at::rand({1, 2 * n, 1}) < 0.5, -1.0f, 1.0f);
  const at::Tensor size = at::cat({at::ones({1, n, 1}), at::full({1, n, 1}, 3.0f)}, 1);
  const at::Tensor found = k_means(Counted(sign * size), 2, {}, {.seed = 1}, at::kCPU);
  EXPECT_NEAR(found.abs().min().item<double>(), 2.0, 0.02);
  EXPECT_NEAR(found.abs().max().item<double>(), 2.0, 0.02);
}

TEST(CodebookStream, ErrorsOfCellsAreThoseOfTheirPoints) {
  Codebook codebook;
  codebook.first = at::tensor({-4.0f, 4.0f}).view({1, 1, 2, 1});
  // 1,000 points half a unit from -4, and 1,000 two units from 4.
  const at::Tensor near = at::cat({at::full({500}, -4.5f), at::full({500}, -3.5f)});
  const at::Tensor far = at::cat({at::full({500}, 2.0f), at::full({500}, 6.0f)});
  const TensorPoints points({at::cat({near, far}).view({1, 2000, 1}), {}});
  set_errors(codebook, points, at::kCPU);
  const at::Tensor errors = codebook.errors.view({2});
  EXPECT_EQ(codebook.profile.item<float>(), 1.0f) << "one channel";
  const double mean = (0.25 + 4.0) / 2;
  EXPECT_NEAR(errors[0].item<double>(), (1000 * 0.25 + kPriorPoints * mean) / (1000 + kPriorPoints), 1e-3);
  EXPECT_NEAR(errors[1].item<double>(), (1000 * 4.0 + kPriorPoints * mean) / (1000 + kPriorPoints), 2e-3);
}

}  // namespace
}  // namespace oscar
