// The decode kernel against attention in double precision on the same cache. Needs a GPU; skipped without one.
#include <gtest/gtest.h>

#include "tests/kernels/decode_case.h"

namespace oscar::kernels {
namespace {

class DecodeAttention : public ::testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
  }
  static bool has_clusters() {
    int device = 0, major = 0;
    check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
    return major == 9;
  }
  static double error_of(DecodeCase c) {
    c.build();
    return relative_error(c.run(), c.reference(), c);
  }
};

constexpr double kLimit = 2e-3;

TEST_F(DecodeAttention, OneSequence) {
  for (int d : {64, 128, 256}) {
    for (int n : {1, 2, 63, 64, 65, 319, 320, 321, 384, 385, 1000, 5000}) {
      DecodeCase c{.batch = 1, .query_heads = 8, .kv_heads = 2, .head_dim = d, .lengths = {n}};
      EXPECT_LT(error_of(c), kLimit) << "d " << d << " n " << n;
    }
  }
}

TEST_F(DecodeAttention, BlocksOneSequence) {
  const std::array<std::uint8_t, 4> some[] = {{4, 2, 1, 1}, {4, 4, 2, 0}, {2, 2, 2, 2}, {1, 0, 4, 2},
                                              {4, 4, 4, 4}, {1, 1, 1, 1}, {0, 0, 0, 1}, {0, 0, 0, 0}};
  int i = 0;
  for (int d : {64, 128, 256, 512}) {
    for (const auto& key : some) {
      for (const DecodeKernel kernel : {DecodeKernel::kStream, DecodeKernel::kCluster, DecodeKernel::kParts}) {
        if (kernel != DecodeKernel::kStream && !has_clusters()) continue;
        if (kernel == DecodeKernel::kParts && d > 128) continue;
        if (kernel == DecodeKernel::kCluster && d == 512 && key[2] == 4) continue;  // a block does not fit
        DecodeCase c{.batch = 1, .query_heads = 8, .kv_heads = 2, .head_dim = d, .lengths = {1003}};
        c.blocks = true, c.kernel = kernel, c.key_widths = key, c.value_widths = some[++i % 7], c.seed = i;
        EXPECT_LT(error_of(c), kLimit) << "d " << d << " widths " << ::testing::PrintToString(key) << " "
                                       << ::testing::PrintToString(c.value_widths) << " kernel "
                                       << static_cast<int>(kernel);
      }
    }
  }
}

TEST_F(DecodeAttention, ManyPagesForEachWarp) {
  for (const DecodeKernel kernel : {DecodeKernel::kStream, DecodeKernel::kCluster, DecodeKernel::kParts}) {
    if (kernel != DecodeKernel::kStream && !has_clusters()) continue;
    for (const bool blocks : {false, true}) {
      DecodeCase c{.batch = 3, .query_heads = 16, .kv_heads = 16, .head_dim = 64, .lengths = {30, 100000, 700}};
      c.blocks = blocks, c.kernel = kernel, c.key_widths = {2, 1, 0, 0}, c.value_widths = {2, 0, 1, 0};
      EXPECT_LT(error_of(c), kLimit) << "blocks " << blocks << " kernel " << static_cast<int>(kernel);
    }
  }
}

// Threads launch one kernel with pages, and so with shared memory, of different sizes: the limit of the kernel is not
// lowered by one of them between another's plan and its launch.
TEST_F(DecodeAttention, ThreadsWithPagesOfDifferentSizes) {
  std::atomic<int> failed{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&failed, i] {
      const int w = i % 2 == 0 ? 4 : 1;
      const auto width = static_cast<std::uint8_t>(w);
      for (const DecodeKernel kernel : {DecodeKernel::kStream, DecodeKernel::kAuto}) {
        DecodeCase c{.batch = 1, .query_heads = 8, .kv_heads = 2, .head_dim = 64, .lengths = {700}};
        c.blocks = true, c.kernel = kernel, c.key_widths = c.value_widths = {width, 0, 0, 0}, c.seed = 40 + i;
        c.build();
        try {
          if (!(relative_error(c.run(300), c.reference(), c) < kLimit)) ++failed;
        } catch (const std::exception&) {
          ++failed;
        }
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(failed, 0);
}

TEST_F(DecodeAttention, OneWorkspaceServesBatchesOfAnySize) {
  const std::size_t bytes = decode_attention_workspace_bytes(128, 4, 16, 8);
  DeviceArray<std::uint8_t> workspace(bytes);
  check_cuda(cudaMemset(workspace.get(), 0, bytes), "cudaMemset");
  for (const int batch : {16, 1, 8, 2, 16, 1}) {
    DecodeCase c{.batch = batch, .query_heads = 32, .kv_heads = 8, .head_dim = 128};
    c.lengths.assign(static_cast<std::size_t>(batch), batch > 8 ? 700 : 3000);
    c.build();
    EXPECT_LT(relative_error(c.run(2, workspace.get()), c.reference(), c), kLimit) << "batch " << batch;
  }
}

// 480 items, each of which has a small block on a device of 132 multiprocessors, and 136 items, which are too few for a
// block each and too many for two; of equal and of different lengths.
TEST_F(DecodeAttention, ManySequences) {
  for (const int batch : {60, 17})
    for (const int step : {0, 37})
      for (const bool blocks : {false, true}) {
        DecodeCase c{.batch = batch, .query_heads = 16, .kv_heads = 8, .head_dim = 128, .blocks = blocks};
        if (blocks) c.key_widths = {4, 2, 1, 1}, c.value_widths = {2, 2, 1, 0};
        for (int b = 0; b < batch; ++b) c.lengths.push_back(700 + step * (b * 7 % batch - batch / 4));
        c.build();
        EXPECT_LT(relative_error(c.run(), c.reference(), c), kLimit) << batch << " sequences, step " << step;
      }
}

TEST_F(DecodeAttention, EveryGroupSize) {
  for (int group = 1; group <= 16; ++group) {
    for (const bool blocks : {false, true}) {
      DecodeCase c{.batch = 2, .query_heads = 2 * group, .kv_heads = 2, .head_dim = 128, .lengths = {700, 1333}};
      c.seed = group, c.blocks = blocks;
      EXPECT_LT(error_of(c), kLimit) << "group " << group << " blocks " << blocks;
    }
  }
}

// Groups, lengths, windows and steps of many sequences at the widest head size.
TEST_F(DecodeAttention, HeadsOf512Channels) {
  for (int group = 1; group <= 8; ++group) {
    DecodeCase c{.batch = 2, .query_heads = 2 * group, .kv_heads = 2, .head_dim = 512, .lengths = {700, 1333}};
    c.seed = group, c.blocks = true, c.sliding_window = group == 3 ? 300 : 0, c.soft_cap = group == 5 ? 3.0f : 0.0f;
    c.sinks = group == 6, c.flush = group == 7 ? 8 : 1, c.score_spread = group == 8 ? 5.0f : 1.0f;
    EXPECT_LT(error_of(c), kLimit) << "group " << group;
  }
  for (int n : {1, 2, 63, 64, 65, 319, 320, 321, 384, 385, 5000}) {
    DecodeCase c{.batch = 1, .query_heads = 8, .kv_heads = 1, .head_dim = 512, .lengths = {n}};
    c.blocks = true;
    EXPECT_LT(error_of(c), kLimit) << "n " << n;
  }
  DecodeCase many{.batch = 150, .query_heads = 16, .kv_heads = 2, .head_dim = 512};
  for (int i = 0; i < many.batch; ++i) many.lengths.push_back(i * 37 % 900);
  many.blocks = true;
  EXPECT_LT(error_of(many), kLimit);
}

// Pages of wide codes, for which a block of eight warps has no room, and half of the warps by request.
TEST_F(DecodeAttention, FewerWarpsForWidePages) {
  for (const auto& widths : {std::array<std::uint8_t, 4>{4, 4, 4, 4}, {4, 2, 1, 1}}) {
    for (const DecodeKernel kernel : {DecodeKernel::kAuto, DecodeKernel::kHalfStream}) {
      for (const int sequences : {1, 3, 200}) {
        DecodeCase c{.batch = sequences, .query_heads = 16, .kv_heads = 2, .head_dim = 512, .flush = 4};
        for (int i = 0; i < sequences; ++i) c.lengths.push_back(5 + i * 37 % 1500);
        c.blocks = true, c.kernel = kernel, c.key_widths = c.value_widths = widths;
        EXPECT_LT(error_of(c), kLimit) << "width " << int{widths[3]} << " kernel " << static_cast<int>(kernel)
                                       << " sequences " << sequences;
      }
    }
  }
}

TEST_F(DecodeAttention, SharpSoftmaxAndLargeValues) {
  for (float spread : {0.1f, 4.0f, 12.0f}) {
    DecodeCase c{
        .batch = 2, .query_heads = 8, .kv_heads = 2, .head_dim = 128, .score_spread = spread, .lengths = {2000, 900}};
    EXPECT_LT(error_of(c), kLimit) << "spread " << spread;
  }
}

TEST_F(DecodeAttention, EmptyTiersAndEmptySequences) {
  DecodeCase c{.batch = 5, .query_heads = 8, .kv_heads = 2, .head_dim = 128, .lengths = {0, 5, 0, 1500, 0}};
  EXPECT_LT(error_of(c), kLimit);
  c.sink = 0;
  EXPECT_LT(error_of(c), kLimit);
  c.recent = 1;
  EXPECT_LT(error_of(c), kLimit);
}

TEST_F(DecodeAttention, SlidingWindowSoftCapAndSinks) {
  for (const int group : {4, 12}) {
    for (const bool blocks : {false, true}) {
      for (const int window : {1, 17, 100, 300, 700}) {
        DecodeCase c{.batch = 3,
                     .query_heads = 2 * group,
                     .kv_heads = 2,
                     .head_dim = 128,
                     .sliding_window = window,
                     .lengths = {1, 600, 1500}};
        c.blocks = blocks;
        EXPECT_LT(error_of(c), kLimit) << "group " << group << " blocks " << blocks << " window " << window;
      }
      DecodeCase c{.batch = 2,
                   .query_heads = 2 * group - 2,
                   .kv_heads = 2,
                   .head_dim = 128,
                   .soft_cap = 3.0f,
                   .sinks = true,
                   .lengths = {200, 1500}};
      c.blocks = blocks;
      EXPECT_LT(error_of(c), kLimit) << "group " << group - 1 << " blocks " << blocks;
    }
  }
}

TEST_F(DecodeAttention, RandomShapes) {
  std::mt19937 random(7);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
  const char* env = std::getenv("OSCAR_RANDOM_SHAPES");
  const int shapes = env ? std::atoi(env) : 200;
  double worst = 0;
  for (int i = 0; i < shapes; ++i) {
    DecodeCase c{};
    c.batch = pick(1, 6);
    c.kv_heads = pick(1, 4);
    c.query_heads = c.kv_heads * pick(1, 16);
    c.head_dim = std::array{64, 128, 256, 512}[pick(0, 3)];
    if (c.head_dim == 512) c.query_heads = c.kv_heads * pick(1, 8);
    c.sink = 64 * pick(0, 2);
    c.flush = std::array{1, 8, 16}[pick(0, 2)];
    c.recent = pick(1, 300);
    c.sliding_window = pick(0, 3) == 0 ? pick(1, 900) : 0;
    c.soft_cap = pick(0, 4) == 0 ? 5.0f : 0.0f;
    c.sinks = pick(0, 3) == 0;
    c.score_spread = std::array{0.2f, 1.0f, 5.0f}[pick(0, 2)];
    for (int b = 0; b < c.batch; ++b) c.lengths.push_back(pick(0, 4) == 0 ? pick(0, 70) : pick(0, 1200));
    c.seed = 1000 + i;
    c.blocks = pick(0, 1) == 1 || c.head_dim == 512;
    for (int b = 0; b < 4; ++b) {
      c.key_widths[b] = std::array<std::uint8_t, 4>{0, 1, 2, 4}[pick(0, 3)];
      c.value_widths[b] = std::array<std::uint8_t, 4>{0, 1, 2, 4}[pick(0, 3)];
    }
    c.kernel = has_clusters()
                   ? std::array{DecodeKernel::kStream, c.head_dim == 512 ? DecodeKernel::kAuto : DecodeKernel::kCluster,
                                DecodeKernel::kAuto}[pick(0, 2)]
                   : DecodeKernel::kAuto;
    const double error = error_of(c);
    ASSERT_LT(error, kLimit) << "shape " << i << ": batch " << c.batch << " heads " << c.query_heads << "/"
                             << c.kv_heads << " d " << c.head_dim << " sink " << c.sink << " recent " << c.recent
                             << " flush " << c.flush << " window " << c.sliding_window << " cap " << c.soft_cap
                             << " blocks " << c.blocks << " widths " << ::testing::PrintToString(c.key_widths) << " "
                             << ::testing::PrintToString(c.value_widths) << " kernel " << static_cast<int>(c.kernel);
    worst = std::max(worst, error);
  }
  std::printf("%d shapes, largest relative error %.2e\n", shapes, worst);
}

// What GPUs with 99 KiB of shared memory run. Hopper has it in builds without code for 90a: configure with
// -DOSCAR_CUDA_ARCHITECTURES=90-virtual.
TEST_F(DecodeAttention, HalfTheWarps) {
  struct Shape {
    int head_dim, gqa_group;
    bool blocks;
  };
  for (const Shape s : {Shape{256, 4, true}, {128, 16, true}, {256, 16, true}, {256, 12, false}}) {
    for (const int sequences : {1, 3, 200}) {
      DecodeCase c{
          .batch = sequences, .query_heads = 2 * s.gqa_group, .kv_heads = 2, .head_dim = s.head_dim, .flush = 4};
      for (int i = 0; i < sequences; ++i) c.lengths.push_back(5 + i * 37 % 1500);
      c.blocks = s.blocks, c.kernel = DecodeKernel::kHalfStream;
      c.key_widths = {4, 4, 2, 1}, c.value_widths = {1, 4, 0, 2};
      c.build();
      std::vector<float> made;
      try {
        made = c.run();
      } catch (const std::exception& error) {
        if (!has_clusters()) throw;
        GTEST_SKIP() << "code for 90a: " << error.what();
      }
      EXPECT_LT(relative_error(made, c.reference(), c), kLimit)
          << "d " << s.head_dim << " group " << s.gqa_group << " blocks " << s.blocks << " sequences " << sequences;
    }
  }
}

TEST_F(DecodeAttention, RefusesShapesThatAreNotBuilt) {
  PagedDecodeParams p{};
  p.query_heads = 17, p.kv_heads = 1, p.head_dim = 128, p.flush = 1, p.ring_pages = 5, p.sink_pages = 1, p.sink = 64,
  p.recent = 256;
  EXPECT_EQ(decode_attention(p, nullptr), cudaErrorInvalidValue);
  p.query_heads = 9, p.head_dim = 512, p.blocks = true;  // 8 heads at most
  const float one = 1.0f;
  p.key_sigma = p.value_sigma = &one;
  EXPECT_EQ(decode_attention(p, nullptr), cudaErrorInvalidValue);
  p.query_heads = 8, p.blocks = false;  // no layout but blocks
  EXPECT_EQ(decode_attention(p, nullptr), cudaErrorInvalidValue);
  p.key_sigma = p.value_sigma = nullptr;
  p.query_heads = 4, p.head_dim = 96;
  EXPECT_EQ(decode_attention(p, nullptr), cudaErrorInvalidValue);
  p.head_dim = 128, p.blocks = true;
  EXPECT_EQ(decode_attention(p, nullptr), cudaErrorInvalidValue);  // no deviations
  const float sigma = 1.0f;
  p.key_sigma = p.value_sigma = &sigma, p.key_widths[2] = 3;
  EXPECT_EQ(decode_attention(p, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace oscar::kernels
