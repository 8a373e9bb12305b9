// k-means finds what is there, codes are the nearest centroids, and bits are counted as the papers count them.
#include "rotation/k_means.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "base/errors.h"
#include "rotation/codebook.h"
#include "support/message_of.h"

namespace oscar {
namespace {

// [B, k n, c]: n points in a ball of radius 0.01 about each of k centres, which are whole numbers, shuffled.
struct Clusters {
  at::Tensor points, means;  // means: [B, k, c] of the points drawn
};

Clusters clusters(std::int64_t batch, std::int64_t k, std::int64_t n, std::int64_t c) {
  at::manual_seed(7);
  at::Tensor points = at::empty({batch, k, n, c});
  for (std::int64_t i = 0; i < k; ++i) {
    at::Tensor centre = at::zeros({c});
    for (std::int64_t j = 0; j < c; ++j)
      centre[j] = static_cast<double>((i / (1 << j)) % 2 == 0 ? -5 * (i + 1) : 5 * (i + 1));
    points.select(1, i).copy_(centre + 0.01 * (at::rand({batch, n, c}) - 0.5));
  }
  const at::Tensor order = at::randperm(k * n);
  return {points.view({batch, k * n, c}).index_select(1, order).contiguous(), points.mean(2)};
}

// The rows of both, each set in ascending order of the first channel.
double distance_of_sets(const at::Tensor& a, const at::Tensor& b) {
  const auto sorted = [](const at::Tensor& x) { return x.index_select(0, x.select(1, 0).argsort()); };
  return (sorted(a) - sorted(b)).abs().max().item<double>();
}

TEST(KMeans, SeparatedClustersAreFoundExactly) {
  const Clusters made = clusters(3, 8, 50, 4);
  const at::Tensor found = k_means(made.points, 8, {}, {.seed = 3});
  for (std::int64_t b = 0; b < 3; ++b) EXPECT_LT(distance_of_sets(found[b], made.means[b]), 1e-5) << b;
  EXPECT_TRUE(at::equal(found, k_means(made.points, 8, {}, {.seed = 3}))) << "the same seed gives the same centroids";
}

TEST(KMeans, WeightsDecideWhichChannelBordersFollow) {
  // Four points at the corners of a square: two centroids split the channel that weighs more.
  const at::Tensor square = at::tensor({0.0f, 0.0f, 0.0f, 1.0f, 1.0f, 0.0f, 1.0f, 1.0f}).view({1, 4, 2});
  for (const bool first : {true, false}) {
    const at::Tensor weights = first ? at::tensor({4.0f, 1.0f}) : at::tensor({1.0f, 4.0f});
    const at::Tensor found = k_means(square, 2, weights.unsqueeze(0), {.seed = 1})[0];
    EXPECT_NEAR(found.select(1, first ? 0 : 1).sub(0.5f).abs().min().item<double>(), 0.5, 1e-6) << first;
    EXPECT_NEAR(found.select(1, first ? 1 : 0).sub(0.5f).abs().max().item<double>(), 0.0, 1e-6) << first;
  }
}

TEST(KMeans, WeightsOfPointsMoveMeansAndNoBorders) {
  const at::Tensor points = at::tensor({0.0f, 1.0f, 10.0f, 12.0f, 14.0f}).view({1, 5, 1});
  const at::Tensor weights = at::tensor({3.0f, 1.0f, 0.0f, 0.5f, 1.5f}).view({1, 5});
  const at::Tensor found = k_means(points, 2, {}, {.seed = 1, .point_weights = weights});
  const at::Tensor ascending = std::get<0>(found.view({2}).sort());
  EXPECT_NEAR(ascending[0].item<double>(), 0.25, 1e-6);
  EXPECT_NEAR(ascending[1].item<double>(), 13.5, 1e-6);
  // Equal weights are no weights, and points without any leave finite centroids.
  const Clusters made = clusters(2, 4, 30, 4);
  const at::Tensor plain = k_means(made.points, 4, {}, {.seed = 2});
  const at::Tensor equal = at::full({2, 120}, 0.25f);
  EXPECT_TRUE(at::allclose(k_means(made.points, 4, {}, {.seed = 2, .point_weights = equal}), plain));
  const at::Tensor none = k_means(made.points, 4, {}, {.seed = 2, .point_weights = at::zeros({2, 120})});
  EXPECT_TRUE(none.isfinite().all().item<bool>());
}

TEST(KMeans, EqualPointsGiveFiniteCentroids) {
  const at::Tensor found = k_means(at::full({2, 20, 3}, 2.5f), 8, {}, {});
  EXPECT_TRUE(at::equal(found, at::full({2, 8, 3}, 2.5f)));
}

Codebook random_codebook(std::int64_t heads, std::int64_t groups, std::int64_t centroids, std::int64_t channels) {
  Codebook codebook;
  codebook.first = as_centroids(at::randn({heads, groups, centroids, channels}), codebook.type);
  return codebook;
}

TEST(Codebook, RowsOfCentroidsComeBackAsTheyAre) {
  at::manual_seed(5);
  for (const std::int64_t heads : {1, 2}) {
    const Codebook codebook = random_codebook(heads, 4, 16, 8);
    const at::Tensor codes = at::randint(16, {2, 30, 4});
    at::Tensor rows = at::empty({2, 30, 4, 8});
    for (std::int64_t h = 0; h < 2; ++h) {
      for (std::int64_t g = 0; g < 4; ++g) {
        rows[h].select(1, g).copy_(codebook.first[heads == 1 ? 0 : h][g].index_select(0, codes[h].select(1, g)));
      }
    }
    const at::Tensor flat = rows.reshape({2, 30, 32});
    EXPECT_TRUE(at::equal(decode_encoded(codebook, flat), flat)) << heads;
    const at::Tensor near = flat + 1e-4 * at::randn(flat.sizes());
    EXPECT_TRUE(at::equal(decode_encoded(codebook, near), flat)) << heads;
  }
}

TEST(Codebook, TheSecondStageCodesWhatTheFirstLeaves) {
  Codebook codebook;
  codebook.first = at::tensor({-4.0f, 4.0f}).view({1, 1, 2, 1});
  codebook.second = at::tensor({-1.0f, 1.0f}).view({1, 1, 2, 1});
  const at::Tensor rows = at::tensor({-5.2f, -2.0f, 3.5f, 9.0f}).view({1, 4, 1});
  EXPECT_TRUE(at::equal(decode_encoded(codebook, rows).view({4}), at::tensor({-5.0f, -3.0f, 3.0f, 5.0f})));
}

TEST(Codebook, ScalesAreHalfPrecisionRootMeanSquares) {
  const at::Tensor rows = at::tensor({3.0f, 4.0f, 0.0f, 0.0f}).view({2, 1, 2});  // two heads of one token
  EXPECT_TRUE(at::equal(row_scales(rows, RowScale::kHead).view({2}),
                        at::tensor({static_cast<float>(at::Half(3.5355339f)), 1.0f})));
  EXPECT_TRUE(at::equal(row_scales(rows, RowScale::kToken).view({1}), at::tensor({2.5f})));
  Codebook codebook;
  codebook.scale = RowScale::kToken;
  codebook.first = at::tensor({0.0f, 0.0f, 1.2f, 1.6f}).view({1, 1, 2, 2});
  codebook.first = as_centroids(codebook.first, codebook.type);
  const at::Tensor decoded = decode_encoded(codebook, rows);
  EXPECT_NEAR((decoded - rows).abs().max().item<double>(), 0.0, 5e-3);
}

TEST(Codebook, BitsAndBytesAreThoseOfThePapers) {
  EXPECT_DOUBLE_EQ(random_codebook(8, 16, 1024, 8).bits_per_element(8), 1.25);
  EXPECT_DOUBLE_EQ(random_codebook(8, 16, 256, 8).bits_per_element(8), 1.0);
  EXPECT_EQ(random_codebook(8, 16, 1024, 8).bytes(), 8u * 256 * 1024) << "TaSQ: 256 KiB for a head and side";
  Codebook tasq = random_codebook(8, 16, 1024, 8);
  tasq.scale = RowScale::kToken;
  EXPECT_DOUBLE_EQ(tasq.bits_per_element(8), 1.265625);
  Codebook small = random_codebook(2, 8, 1024, 8);
  small.scale = RowScale::kToken;
  EXPECT_DOUBLE_EQ(small.bits_per_element(2) - 1.25, 0.125);
  Codebook nova = random_codebook(8, 32, 256, 4);
  nova.scale = RowScale::kHead;
  EXPECT_DOUBLE_EQ(nova.bits_per_element(8), 2.125);
}

TEST(Codebook, CentroidsBeyondTheirTypeAreRefused) {
  EXPECT_NE(
      message_of<NumericalError>([] { as_centroids(at::full({2}, 70000.0f), CentroidType::kFloat16); }).find("float16"),
      std::string::npos);
  EXPECT_TRUE(at::equal(as_centroids(at::full({1}, 1.1f), CentroidType::kFloat8E5M2), at::ones({1})));
}

}  // namespace
}  // namespace oscar
