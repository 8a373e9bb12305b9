// quantize_pages and dequantize_pages against the CPU codec, byte for byte: layouts, encoders, sides, head sizes,
// clips, partly filled pages, rotations with and without a mean.
#include "kernels/quantize/quantize_pages.h"

#include <gtest/gtest.h>

#include <climits>
#include <cstring>
#include <limits>
#include <random>

#include "cache/row_loops.h"
#include "cache/row_pages.h"
#include "codec/codec.h"
#include "kernels/dequantize/dequantize_pages.h"
#include "layout/float16.h"

namespace oscar::kernels {
namespace {

template <class T>
class Device {
 public:
  explicit Device(const std::vector<T>& host) : n_(host.size()) {
    EXPECT_EQ(cudaMalloc(&data_, std::max<std::size_t>(1, n_ * sizeof(T))), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(data_, host.data(), n_ * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
  }
  ~Device() { cudaFree(data_); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  T* get() const { return static_cast<T*>(data_); }
  std::vector<T> host() const {
    std::vector<T> out(n_);
    EXPECT_EQ(cudaMemcpy(out.data(), data_, n_ * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return out;
  }

 private:
  void* data_ = nullptr;
  std::size_t n_;
};

bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

struct Shape {
  RowCode code;
  Side side = Side::kKey;
  Encoder encoder = Encoder::kMinMax;
  float clip = 0.0f;
  int heads = 3;
  bool rotate = true, mean = false, per_head = false;
  unsigned seed = 1;
};

// Everything one launch needs, on the host.
struct Case {
  Shape shape;
  int d, tokens = 0;
  std::vector<PageRun> runs;
  std::vector<float> rows, matrix, mean, clip, sigma;
  PageLayout layout;
  SideLayout side;

  explicit Case(const Shape& s) : shape(s), d(s.code.head_dim), layout(page_layout(s.code, s.code)) {
    side = s.side == Side::kKey ? layout.key : layout.value;
    std::mt19937 random(s.seed);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& to, std::size_t n, float spread) {
      to.resize(n);
      for (float& v : to) v = spread * normal(random);
    };
    // A whole page, the end of one, the middle of another, a single token; an empty run.
    runs = {{0, 64, 4, 0, 0}, {64, 16, 1, 48, 64}, {80, 8, 0, 24, 80}, {0, 0, 0, 0, 0}, {88, 1, 3, 63, 88}};
    tokens = 89;
    fill(rows, static_cast<std::size_t>(tokens * s.heads * d), 2.0f);
    for (std::size_t i = 0; i < rows.size(); i += 97) rows[i] *= 30.0f;  // outliers
    for (int i = 0; i < s.heads * d; ++i)
      rows[static_cast<std::size_t>(5 * s.heads * d + i)] = 0.25f;  // a constant token
    for (int i = 0; i < s.heads * d; ++i) rows[static_cast<std::size_t>(6 * s.heads * d + i)] = 0.0f;
    for (int i = 0; i < s.heads * d; ++i) rows[static_cast<std::size_t>(7 * s.heads * d + i)] *= 1e-20f;
    for (int i = 0; i < s.heads * d; ++i) rows[static_cast<std::size_t>(8 * s.heads * d + i)] *= 1e15f;
    if (s.rotate)
      fill(matrix, static_cast<std::size_t>((s.per_head ? s.heads : 1) * d * d),
           1.0f / std::sqrt(static_cast<float>(d)));
    if (s.mean) fill(mean, static_cast<std::size_t>(s.heads * d), 1.0f);
    clip.assign(static_cast<std::size_t>(s.heads), s.clip);
    for (int i = 0; i < s.heads * 4; ++i) sigma.push_back(0.5f + 0.25f * static_cast<float>(i % 5));
  }

  std::vector<std::uint8_t> blank() const {
    std::vector<std::uint8_t> pages(static_cast<std::size_t>(5 * shape.heads * layout.bytes()));
    std::mt19937 random(7);
    for (std::uint8_t& b : pages) b = static_cast<std::uint8_t>(random());  // bits of other slots must survive
    return pages;
  }

  RowCodec codec(int head) const {
    RowCodec codec{shape.code, shape.side, shape.encoder, shape.clip};
    for (std::size_t b = 0; b < 4; ++b) codec.sigma[b] = sigma[static_cast<std::size_t>(head) * 4 + b];
    return codec;
  }

  // The reference. rotated: [tokens, heads, d] BF16 bits.
  std::vector<std::uint8_t> expected(std::vector<std::uint16_t>& rotated, std::vector<float>& decoded) const {
    std::vector<std::uint8_t> pages = blank();
    rotated.assign(rows.size(), 0);
    decoded.assign(rows.size(), 0.0f);
    const RowPages writer(layout, shape.side);
    for (int h = 0; h < shape.heads; ++h) {
      rotate_rows(rows.data() + h * d, tokens, shape.heads * d, shape.mean ? mean.data() + h * d : nullptr,
                  shape.rotate ? matrix.data() + (shape.per_head ? h : 0) * d * d : nullptr, d, rotated.data() + h * d,
                  shape.heads * d);
      for (const PageRun& run : runs) {
        for (int t = 0; t < run.count; ++t) {
          const std::size_t at = static_cast<std::size_t>(((run.first_row + t) * shape.heads + h) * d);
          std::vector<float> row(static_cast<std::size_t>(d));
          for (int i = 0; i < d; ++i)
            row[static_cast<std::size_t>(i)] = bfloat16_value(rotated[at + static_cast<std::size_t>(i)]);
          std::vector<std::uint8_t> codes(static_cast<std::size_t>(d)), params(64);
          encode_rows(codec(h), row.data(), 1, 0, codes.data(), params.data());
          std::uint8_t* page = pages.data() + (run.page * shape.heads + h) * layout.bytes();
          writer.put(page, run.first_slot + t, codes.data(), params.data());
          decode_rows(codec(h), codes.data(), params.data(), 1, decoded.data() + at, 0);
        }
      }
    }
    return pages;
  }
};

QuantizeEncoder kernel_encoder(Encoder encoder) {
  return encoder == Encoder::kSearch ? QuantizeEncoder::kSearch : QuantizeEncoder::kMinMax;
}

void expect_equal(const Shape& shape) {
  const Case c(shape);
  std::vector<std::uint16_t> rotated;
  std::vector<float> decoded;
  const std::vector<std::uint8_t> wanted = c.expected(rotated, decoded);
  Device<float> rows(c.rows), matrix(c.matrix), mean(c.mean), clip(c.clip), sigma(c.sigma),
      back(std::vector<float>(c.rows.size(), 0.0f));
  Device<PageRun> runs(c.runs);
  Device<std::uint8_t> pages(c.blank());
  Device<std::uint16_t> out(std::vector<std::uint16_t>(c.rows.size()));
  Device<std::int32_t> bad({INT_MAX});
  QuantizePagesParams p{};
  p.rows = rows.get();
  p.mean = shape.mean ? mean.get() : nullptr;
  p.matrix = shape.rotate ? matrix.get() : nullptr;
  p.rotated = out.get();
  p.runs = runs.get();
  p.pages = pages.get();
  p.clip = clip.get();
  p.sigma = sigma.get();
  p.bad = bad.get();
  p.layout = c.side;
  p.page_bytes = c.layout.bytes();
  p.run_count = static_cast<int>(c.runs.size());
  p.kv_heads = shape.heads;
  p.matrix_heads = shape.per_head ? shape.heads : 1;
  p.encoder = kernel_encoder(shape.encoder);
  p.value_side = shape.side == Side::kValue;
  // Rotated alone, then coded, too.
  p.pages = nullptr;
  ASSERT_EQ(quantize_pages(p, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(out.host(), rotated);
  p.pages = pages.get();
  ASSERT_EQ(quantize_pages(p, nullptr), cudaSuccess);
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(out.host(), rotated);
  EXPECT_EQ(bad.host()[0], INT_MAX);
  const std::vector<std::uint8_t> found = pages.host();
  std::size_t different = 0;
  for (std::size_t i = 0; i < found.size(); ++i) different += found[i] != wanted[i] ? 1 : 0;
  EXPECT_EQ(different, 0u) << "bytes of " << found.size();

  DequantizePagesParams r{};
  r.pages = pages.get();
  r.runs = runs.get();
  r.sigma = sigma.get();
  r.rows = back.get();
  r.layout = c.side;
  r.page_bytes = p.page_bytes;
  r.run_count = p.run_count;
  r.kv_heads = shape.heads;
  r.value_side = p.value_side;
  ASSERT_EQ(dequantize_pages(r, nullptr), cudaSuccess);
  EXPECT_EQ(back.host(), decoded);
}

TEST(QuantizePages, UniformLayout) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU";
  unsigned seed = 1;
  for (const int d : {64, 80, 96, 128, 256}) {
    for (const ParamType type : {ParamType::kFloat16, ParamType::kBFloat16}) {
      for (const Encoder encoder : {Encoder::kMinMax, Encoder::kSearch}) {
        for (const Side side : {Side::kKey, Side::kValue}) {
          for (const float clip : {0.0f, 0.92f, 0.45f}) {
            SCOPED_TRACE(std::to_string(d) + " " + to_string(encoder) + " clip " + std::to_string(clip));
            expect_equal(
                {uniform_code(d, 0, type), side, encoder, clip, 2, clip > 0.5f, clip > 0.5f, clip > 0.5f, seed++});
          }
        }
      }
    }
  }
}

TEST(QuantizePages, SmallGroups) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU";
  for (const int group : {16, 32, 64}) {
    for (const Encoder encoder : {Encoder::kMinMax, Encoder::kSearch}) {
      expect_equal({uniform_code(128, group), Side::kValue, encoder, 0.96f, 3, true, false, false, 5});
    }
  }
}

TEST(QuantizePages, BlocksLayout) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU";
  unsigned seed = 100;
  const std::array<std::uint8_t, 4> all[] = {{4, 2, 1, 1}, {4, 4, 2, 0}, {2, 1, 0, 0},
                                             {2, 2, 2, 2}, {0, 4, 0, 1}, {0, 0, 0, 0}};
  for (const int d : {64, 96, 128, 256, 512}) {
    for (const auto& widths : all) {
      for (const Encoder encoder : {Encoder::kMinMax, Encoder::kSearch}) {
        for (const Side side : {Side::kKey, Side::kValue}) {
          SCOPED_TRACE(std::to_string(d) + " " + to_string(encoder));
          expect_equal({band_code(d, widths), side, encoder, 0.0f, 2, true, seed % 2 == 0, true, seed});
          ++seed;
        }
      }
    }
  }
}

TEST(QuantizePages, HeadSizesThatNoWarpFills) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU";
  unsigned seed = 400;
  for (const int d : {20, 24, 32, 40, 72, 264, 512}) {
    for (const Side side : {Side::kKey, Side::kValue}) {
      SCOPED_TRACE(d);
      expect_equal({uniform_code(d), side, Encoder::kSearch, 0.92f, 2, true, true, true, seed++});
      if (d % 32 == 0)
        expect_equal({band_code(d, {4, 2, 1, 0}), side, Encoder::kSearch, 0.0f, 2, true, false, true, seed++});
    }
  }
}

TEST(QuantizePages, NamesTheFirstRowThatIsNotFinite) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU";
  Shape shape{uniform_code(128), Side::kKey, Encoder::kMinMax, 0.0f, 3, false};
  Case c(shape);
  c.rows[static_cast<std::size_t>((70 * 3 + 1) * 128 + 9)] = std::numeric_limits<float>::quiet_NaN();
  c.rows[static_cast<std::size_t>((71 * 3 + 0) * 128 + 9)] = std::numeric_limits<float>::infinity();
  Device<float> rows(c.rows), clip(c.clip);
  Device<PageRun> runs(c.runs);
  Device<std::uint8_t> pages(c.blank());
  Device<std::int32_t> bad({INT_MAX});
  QuantizePagesParams p{};
  p.rows = rows.get();
  p.runs = runs.get();
  p.pages = pages.get();
  p.clip = clip.get();
  p.bad = bad.get();
  p.layout = c.side;
  p.page_bytes = c.layout.bytes();
  p.run_count = static_cast<int>(c.runs.size());
  p.kv_heads = 3;
  p.matrix_heads = 1;
  ASSERT_EQ(quantize_pages(p, nullptr), cudaSuccess);
  EXPECT_EQ(bad.host()[0], 70 * 3 + 1);
}

TEST(QuantizePages, RefusesHeadSizesThatAreNotBuilt) {
  QuantizePagesParams p{};
  p.kv_heads = 1;
  for (const int d : {0, 516}) {
    p.layout.head_dim = d;
    EXPECT_EQ(quantize_pages(p, nullptr), cudaErrorInvalidValue) << d;
  }
}

}  // namespace
}  // namespace oscar::kernels
