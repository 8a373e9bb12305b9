#include "fit/fit_rows.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "fit/made_statistics.h"

namespace oscar {
namespace {

TEST(CheckRows, AreTheFirstOfTheSampleByPosition) {
  Statistics s = made_statistics({random_made_rows(40, 4, 2, 16), random_made_rows(40, 4, 2, 16)});
  for (LayerMoments& layer : s.layers) {
    for (std::size_t i = 0; i < 40; ++i) layer.row_position[i] = static_cast<std::int64_t>(i * 17 % 40);
  }
  const CheckRows rows = check_rows_of(s);
  ASSERT_EQ(rows.positions.size(), 40u);
  for (std::size_t i = 0; i < 40; ++i) EXPECT_EQ(rows.positions[i], static_cast<std::int64_t>(i));
  ASSERT_EQ(rows.layers.size(), 2u);
  EXPECT_EQ(rows.layers[1].layer, 1);
  for (std::int64_t i = 0; i < 40; ++i) {
    const std::int64_t from = i * 33 % 40;  // 33 * 17 = 1 modulo 40
    EXPECT_TRUE(rows.layers[1].k[i].equal(s.layers[1].rows_k[from].to(at::kBFloat16)));
    EXPECT_TRUE(rows.layers[1].v[i].equal(s.layers[1].rows_v[from].to(at::kBFloat16)));
    if (i < 40 - kCheckQueries) continue;
    EXPECT_TRUE(rows.layers[1].q[i - 40 + kCheckQueries].equal(s.layers[1].rows_q[from].to(at::kBFloat16)));
  }
  EXPECT_EQ(rows.layers[1].q.size(0), kCheckQueries);
}

TEST(CheckRows, FitIntoTheirBytes) {
  const auto bytes_of = [](std::int64_t layers, std::int64_t query_heads, std::int64_t kv_heads) {
    Statistics s;
    s.query_heads = query_heads, s.kv_heads = kv_heads, s.head_dim = 128;
    const auto rows = [](std::int64_t heads) { return at::zeros({1}).expand({1000, heads, 128}); };
    for (std::int64_t i = 0; i < layers; ++i) {
      LayerMoments& layer = s.layers.emplace_back();
      layer.rows_q = rows(query_heads), layer.rows_k = rows(kv_heads), layer.rows_v = rows(kv_heads);
      layer.row_position.assign(1000, 7);
    }
    const CheckRows made = check_rows_of(s);
    std::size_t bytes = 8 * made.positions.size();
    for (const CheckRows::Layer& layer : made.layers) bytes += layer.q.nbytes() + layer.k.nbytes() + layer.v.nbytes();
    return std::pair(std::ssize(made.positions), bytes);
  };
  EXPECT_EQ(bytes_of(36, 32, 8), std::pair(std::ptrdiff_t{192}, std::size_t{30'672'384}));
  const auto [rows, bytes] = bytes_of(80, 64, 8);
  EXPECT_EQ(rows, 65);
  EXPECT_LE(bytes, 32'000'000u);
  EXPECT_EQ(bytes_of(400, 128, 128).first, 0);  // no room for one
}

TEST(CheckRows, NeedASample) {
  Statistics s = made_statistics({random_made_rows(40, 4, 2, 16)});
  s.layers[0].rows_q = s.layers[0].rows_k = s.layers[0].rows_v = at::Tensor();
  EXPECT_TRUE(check_rows_of(s).layers.empty());
}

}  // namespace
}  // namespace oscar
