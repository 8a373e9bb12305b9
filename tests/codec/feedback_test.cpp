// Encoder feedback: known answers, and never a worse cosine in the metric than encoder search.
#include "codec/feedback.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/errors.h"
#include "codec/rows.h"

namespace oscar {
namespace {

using Matrix = std::vector<double>;  // [n, n]

// A random metric with eigenvalues that fall by `ratio` from the first to the last: A^T diag A, A with unit rows.
Matrix random_metric(std::uint64_t seed, int n, double ratio) {
  const auto size = static_cast<std::size_t>(n);
  Matrix a(size * size), h(size * size, 0.0);
  for (std::size_t i = 0; i < a.size(); ++i) a[i] = static_cast<double>(gaussian(seed, i)) / std::sqrt(n);
  for (std::size_t k = 0; k < size; ++k) {
    const double weight = std::pow(ratio, -static_cast<double>(k) / n);
    for (std::size_t i = 0; i < size; ++i) {
      for (std::size_t j = 0; j < size; ++j) h[i * size + j] += weight * a[k * size + i] * a[k * size + j];
    }
  }
  return h;
}

std::vector<float> repeated(const Matrix& h, int blocks) {
  std::vector<float> out;
  for (int b = 0; b < blocks; ++b) {
    for (const double v : h) out.push_back(static_cast<float>(v));
  }
  return out;
}

RowCodec feedback_codec(const RowCode& code, Side side, const std::vector<float>& metric) {
  RowCodec codec{.code = code, .side = side, .encoder = Encoder::kFeedback};
  codec.metric = std::make_shared<const FeedbackMetric>(metric.data(), code);
  return codec;
}

double product(const Matrix& h, const float* x, const float* y, std::size_t n) {
  double sum = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) sum += static_cast<double>(x[i]) * h[i * n + j] * static_cast<double>(y[j]);
  }
  return sum;
}

// What the best offset removes (layout uniform): H - h h^T / sum(h).
Matrix without_offset(Matrix h, std::size_t n) {
  std::vector<double> sums(n, 0.0);
  double total = 0.0;
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) sums[i] += h[i * n + j];
    total += sums[i];
  }
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = 0; j < n; ++j) h[i * n + j] -= sums[i] * sums[j] / total;
  }
  return h;
}

struct Shape {
  RowCode code;
  int blocks;
};

std::vector<Shape> shapes() {
  return {{band_code(128, {1, 1, 1, 1}), 4},
          {band_code(128, {2, 2, 2, 2}), 4},
          {band_code(128, {4, 4, 4, 4}), 4},
          {band_code(64, {4, 2, 1, 0}), 4},
          {uniform_code(128), 1},
          {uniform_code(64, 32), 2}};
}

// Errors that do not interact leave nothing to feed back.
TEST(Feedback, IdentityMetricIsSearch) {
  for (const Shape& shape : shapes()) {
    const auto n = static_cast<std::size_t>(shape.code.scale_channels());
    Matrix h(n * n, 0.0);
    for (std::size_t i = 0; i < n; ++i) h[i * (n + 1)] = 3.0;
    const std::vector<float> rows = gaussian_rows(11, 50, shape.code.head_dim, 0.25f);
    for (const Side side : {Side::kKey, Side::kValue}) {
      const RowCodec search{.code = shape.code, .side = side, .encoder = Encoder::kSearch};
      EXPECT_EQ(quantized(feedback_codec(shape.code, side, repeated(h, shape.blocks)), rows), quantized(search, rows));
    }
  }
}

// The cosine between a block and its reconstruction in the metric: what a scale cannot change. No row may lose, and
// together they must gain.
TEST(Feedback, NeverAWorseDirectionThanSearch) {
  for (const Shape& shape : shapes()) {
    const auto n = static_cast<std::size_t>(shape.code.scale_channels());
    const auto d = static_cast<std::size_t>(shape.code.head_dim);
    const bool uniform = shape.code.layout == Layout::kUniform;
    const Matrix h = random_metric(12, static_cast<int>(n), 50.0);
    const Matrix seen = uniform ? without_offset(h, n) : h;
    const std::vector<float> rows = gaussian_rows(13, 100, shape.code.head_dim);
    for (const Side side : {Side::kKey, Side::kValue}) {
      const std::vector<float> a = quantized({.code = shape.code, .side = side, .encoder = Encoder::kSearch}, rows);
      const std::vector<float> b = quantized(feedback_codec(shape.code, side, repeated(h, shape.blocks)), rows);
      double lost_search = 0.0, lost_feedback = 0.0;
      for (std::size_t at = 0; at < rows.size(); at += n) {
        if (!uniform && shape.code.widths[at % d / n] == 0) continue;
        const auto loss = [&](const std::vector<float>& y) {  // 1 - cos^2
          const double xy = product(seen, &rows[at], &y[at], n);
          return 1.0 - xy * xy / (product(seen, &rows[at], &rows[at], n) * product(seen, &y[at], &y[at], n));
        };
        const double before = loss(a), after = loss(b);
        lost_search += before, lost_feedback += after;
        ASSERT_LE(after, before + 1e-4) << "element " << at;
      }
      EXPECT_LT(lost_feedback, 0.97 * lost_search);
    }
  }
}

// Keys keep <x, xhat> = <x, x> in the metric, values are the least-squares fit: the error is orthogonal to xhat.
TEST(Feedback, ScalesAreTakenInTheMetric) {
  const RowCode code = band_code(128, {4, 4, 2, 2});
  const std::size_t n = 32;
  const Matrix h = random_metric(14, 32, 100.0);
  const std::vector<float> rows = gaussian_rows(15, 40, 128);
  for (const Side side : {Side::kKey, Side::kValue}) {
    const std::vector<float> y = quantized(feedback_codec(code, side, repeated(h, 4)), rows);
    double error = 0.0, power = 0.0;
    for (std::size_t at = 0; at < rows.size(); at += n) {
      const float* other = side == Side::kKey ? &rows[at] : &y[at];
      error += product(h, &rows[at], other, n) - product(h, &y[at], other, n);
      power += product(h, &rows[at], &rows[at], n);
    }
    EXPECT_NEAR(error / power, 0.0, 2e-3);  // scale bytes are rounded
  }
}

TEST(Feedback, CodesStayInRange) {
  const std::vector<float> rows = gaussian_rows(16, 64, 128);
  for (const Shape& shape : shapes()) {
    if (shape.code.head_dim != 128) continue;
    const auto n = static_cast<std::size_t>(shape.code.scale_channels());
    std::vector<float> metric = repeated(Matrix(n * n, 1.0), shape.blocks);  // rank one: any error may be moved
    const RowCodec codec = feedback_codec(shape.code, Side::kKey, metric);
    std::vector<std::uint8_t> codes(rows.size()), params(64 * static_cast<std::size_t>(shape.code.param_bytes()));
    encode_rows(codec, rows.data(), 64, 0, codes.data(), params.data());
    for (std::size_t i = 0; i < codes.size(); ++i) {
      const int width = shape.code.layout == Layout::kUniform ? 2 : shape.code.widths[i % 128 / n];
      ASSERT_LT(codes[i], 1 << width);
    }
    for (const float v : quantized(codec, rows)) ASSERT_TRUE(std::isfinite(v));
  }
}

TEST(Feedback, DegenerateMetricsAndRowsStayFinite) {
  const RowCode code = band_code(64, {4, 2, 1, 2});
  std::vector<float> metric(64 * 16, 0.0f);
  metric[0] = 1.0f, metric[17] = -5.0f, metric[16] = 1e30f;  // not positive, hostile
  for (const float size : {0.0f, 1e-30f, 1e-6f, 1e6f, 3e38f}) {
    std::vector<float> row = gaussian_rows(17, 1, 64);
    for (float& v : row) v *= size;
    for (float& v : row) v = std::isfinite(v) ? v : 1e38f;
    for (const float v : quantized(feedback_codec(code, Side::kKey, metric), row)) ASSERT_TRUE(std::isfinite(v));
  }
  metric[3] = std::nanf("");
  EXPECT_THROW(FeedbackMetric(metric.data(), code), InputError);
}

TEST(Feedback, NeedsItsMetric) {
  const std::vector<float> row = gaussian_rows(18, 1, 64);
  RowCodec codec{.code = uniform_code(64), .encoder = Encoder::kFeedback};
  EXPECT_THROW(quantized(codec, row), InputError);
  const std::vector<float> metric(64 * 16, 1.0f);
  codec.metric = std::make_shared<const FeedbackMetric>(metric.data(), band_code(64, {2, 2, 2, 2}));
  EXPECT_THROW(quantized(codec, row), InputError);  // of another layout
  EXPECT_EQ(parse_encoder("feedback"), Encoder::kFeedback);
  EXPECT_EQ(to_string(Encoder::kFeedback), "feedback");
}

}  // namespace
}  // namespace oscar
