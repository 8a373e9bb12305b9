// The decode kernel of latent attention against attention in double precision on the same cache. Needs a GPU; skipped
// without one.
#include <gtest/gtest.h>

#include "tests/kernels/device_array.h"
#include "tests/kernels/latent_case.h"

namespace oscar::kernels {
namespace {

constexpr double kLimit = 1e-3, kLogLimit = 1e-3;

class LatentDecode : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
  }

  // Runs the kernel twice into poisoned memory, expects the same bits, and compares with the reference.
  static void expect_close(LatentCase c, const std::string& what) {
    c.build();
    std::vector<double> expected(c.rows() * kLatentChannels), logs(c.rows());
    latent_decode_reference(c.params, expected, logs);
    const DeviceArray<std::uint8_t> pages(c.pages), windows(c.window_pages);
    const DeviceArray<std::int32_t> table(c.page_table), windows_of(c.window_table), lengths(c.lengths);
    const DeviceArray<float> sigma(c.sigma), added(c.added), out(expected.size()), lse(logs.size());
    const DeviceArray<std::uint16_t> q(c.q);
    c.point(pages.get(), windows.get(), table.get(), windows_of.get(), lengths.get(), sigma.get(), q.get(),
            added.get());
    const std::size_t bytes = latent_decode_workspace_bytes(c.params);
    const DeviceArray<std::uint8_t> workspace(bytes);
    c.params.out = out.get(), c.params.lse = lse.get(), c.params.workspace = workspace.get();
    std::vector<float> first;
    for (int i = 0; i < 2; ++i) {
      check_cuda(cudaMemset(workspace.get(), 0xff, bytes), "cudaMemset");
      check_cuda(cudaMemset(out.get(), 0xff, expected.size() * sizeof(float)), "cudaMemset");
      check_cuda(latent_decode(c.params, nullptr), "latent_decode");
      check_cuda(cudaDeviceSynchronize(), "latent_decode");
      std::vector<float> found = out.host();
      if (i > 0) EXPECT_EQ(std::memcmp(found.data(), first.data(), found.size() * sizeof(float)), 0) << what;
      first = std::move(found);
    }
    EXPECT_LT(relative_error(first, expected), kLimit) << what;
    const std::vector<float> found = lse.host();
    for (std::size_t i = 0; i < logs.size(); ++i) {
      if (c.lengths[i / static_cast<std::size_t>(c.heads)] == 0) {
        EXPECT_EQ(found[i], logs[i]) << what << ", row " << i;  // -infinity
      } else {
        EXPECT_NEAR(found[i], logs[i], kLogLimit) << what << ", row " << i;
      }
    }
    c.params.out_float = false;  // BF16
    check_cuda(latent_decode(c.params, nullptr), "latent_decode");
    const std::vector<float> halves = out.host();
    const std::uint8_t* bits = reinterpret_cast<const std::uint8_t*>(halves.data());
    std::vector<float> rounded;
    for (std::size_t i = 0; i < first.size(); ++i) rounded.push_back(static_cast<float>(bf16_value(bits + 2 * i)));
    EXPECT_LT(relative_error(rounded, expected), 5e-3) << what;
  }
};

TEST_F(LatentDecode, Lengths) {
  for (const int n : {1, 2, 33, 63, 64, 65, 97, 319, 320, 321, 322, 383, 384, 385, 448, 449, 1000, 5000}) {
    expect_close({.lengths = {n}, .seed = static_cast<unsigned>(n)}, "length " + std::to_string(n));
  }
}

TEST_F(LatentDecode, Widths) {
  const std::array<std::uint8_t, 4> some[] = {{4, 4, 4, 4}, {2, 2, 2, 2}, {1, 1, 1, 1}, {0, 0, 0, 0}, {4, 4, 2, 0},
                                              {1, 0, 4, 2}, {0, 0, 0, 1}, {2, 4, 1, 0}, {4, 2, 2, 1}};
  for (const auto& widths : some) {
    for (const int n : {400, 2500}) {
      expect_close({.lengths = {n}, .widths = widths},
                   ::testing::PrintToString(widths) + ", length " + std::to_string(n));
    }
  }
}

TEST_F(LatentDecode, RefinedCodes) {
  const std::array<std::uint8_t, 4> some[] = {{4, 4, 4, 4}, {4, 2, 1, 2}, {4, 0, 0, 1}, {1, 4, 0, 4}, {2, 2, 2, 1}};
  for (const auto& widths : some) {
    for (const int n : {320, 321, 400, 2500}) {
      expect_close({.lengths = {n}, .widths = widths, .refined = true},
                   ::testing::PrintToString(widths) + ", length " + std::to_string(n));
    }
  }
  for (const int splits : {1, 7}) {
    expect_close({.heads = 20,
                  .lengths = {2700, 0, 350, 64},
                  .widths = {4, 2, 1, 2},
                  .refined = true,
                  .page_splits = splits,
                  .window_splits = splits,
                  .spread = 8.0f,
                  .after = true},
                 std::to_string(splits) + " parts");
  }
  // A last band as large as the first, whose product with the wrong block of the query would show.
  LatentCase large{.lengths = {1500}, .widths = {4, 4, 4, 4}, .refined = true};
  large.refined_share = 1.0f;
  expect_close(large, "large");
}

TEST_F(LatentDecode, Heads) {
  for (const int heads : {1, 5, 16, 20, 64, 128}) {
    expect_close({.heads = heads, .lengths = {700, 0, 1300}}, std::to_string(heads) + " heads");
  }
}

TEST_F(LatentDecode, UnequalSequences) {
  expect_close({.lengths = {9000, 1, 0, 500, 321, 64, 3000},
                .spread = 4.0f,
                .spare_bytes = 512,
                .after = true,
                .padded_q = true},
               "");
}

TEST_F(LatentDecode, SharpLogits) {
  for (const float spread : {8.0f, 30.0f}) {
    expect_close({.lengths = {4000, 777}, .spread = spread}, "spread " + std::to_string(spread));
  }
}

TEST_F(LatentDecode, WindowsOfOtherSizes) {
  expect_close({.lengths = {1000, 64, 3}, .sink = 0, .recent = 1}, "no sink");
  expect_close({.lengths = {1500, 333, 101}, .sink = 100, .recent = 70, .slack_pages = 0}, "no whole pages");
  expect_close({.lengths = {3000, 2200}, .sink = 128, .recent = 2048}, "long windows");
}

TEST_F(LatentDecode, EveryDivision) {
  for (const int page_splits : {1, 2, 7, 200}) {
    for (const int window_splits : {1, 3, 20}) {
      expect_close({.lengths = {2700, 350}, .page_splits = page_splits, .window_splits = window_splits},
                   std::to_string(page_splits) + " and " + std::to_string(window_splits) + " parts");
    }
  }
}

TEST_F(LatentDecode, ManySequences) {
  std::vector<int> lengths;
  for (int i = 0; i < 300; ++i) lengths.push_back(1 + i * 37 % 900);
  expect_close({.heads = 2, .lengths = lengths}, "");
}

TEST_F(LatentDecode, RefusesWhatItDoesNotServe) {
  LatentCase c{.lengths = {100}};
  c.build();
  LatentDecodeParams p = c.params;
  p.widths[2] = 3;
  EXPECT_EQ(latent_decode(p, nullptr), cudaErrorInvalidValue);
  p = c.params, p.refined = true, p.widths[3] = 0;
  EXPECT_EQ(latent_decode(p, nullptr), cudaErrorInvalidValue);
  p = c.params, p.page_stride = 16;
  EXPECT_EQ(latent_decode(p, nullptr), cudaErrorInvalidValue);
  p = c.params, p.recent = 64 * p.ring_pages + 1;
  EXPECT_EQ(latent_decode(p, nullptr), cudaErrorInvalidValue);
  p = c.params, p.page_splits = kLatentMostSplits + 1;
  EXPECT_EQ(latent_decode(p, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace oscar::kernels
