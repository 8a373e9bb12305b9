// Tokens that leave BF16 windows, quantized from there, against the same rows taken out before: the bytes of all pages.
// Rows are compared with the CPU codec in quantize_pages_test.cpp.
#include <gtest/gtest.h>

#include <climits>
#include <cstring>
#include <random>

#include "kernels/common/fragment_pages.h"
#include "kernels/quantize/quantize_pages.h"
#include "layout/float16.h"
#include "tests/kernels/device_array.h"

namespace oscar::kernels {
namespace {

struct RunCase {
  SideLayout side;
  std::int64_t page_bytes;
  bool value_side;
  QuantizeEncoder encoder;
};

// Sequences with a ring of two pages each, of which every one gives up 0 to 5 tokens to a page of its own.
class ManyRuns {
 public:
  static constexpr int kSequences = 400, kHeads = 3, kSinkPages = 1, kRingPages = 2;

  explicit ManyRuns(const RunCase& c) : case_(c), d_(c.side.head_dim), random_(static_cast<unsigned>(d_)) {
    const int window_pages = kSequences * (kSinkPages + kRingPages);
    std::normal_distribution<float> normal;
    std::vector<std::uint16_t> some(4093);  // far fewer than there are elements: numbers from a generator take long
    for (std::uint16_t& x : some) x = bfloat16_bits(2.0f * normal(random_));
    windows_.resize(static_cast<std::size_t>(window_pages * kHeads) * window_bytes());
    for (std::size_t i = 0; i < windows_.size(); i += 2) {
      std::memcpy(windows_.data() + i, &some[i / 2 * 7 % some.size()], 2);
    }
    for (int i = 0; i < window_pages; ++i) table_.push_back(window_pages - 1 - i);
    for (int s = 0; s < kSequences; ++s) {
      const int slot = 17 * s % (64 * kRingPages), count = s % 6, first = 29 * s % 59;
      runs_.push_back({s * 64 * kRingPages + slot, count, s, first, 1000 + s});
    }
    pages_.resize(static_cast<std::size_t>(kSequences * kHeads * c.page_bytes));
    for (std::uint8_t& b : pages_) b = static_cast<std::uint8_t>(random_());  // bits of other slots must survive
    clip_.assign(kHeads, 0.9f);
    for (int i = 0; i < kHeads * 4; ++i) sigma_.push_back(0.5f + 0.25f * static_cast<float>(i % 5));
  }

  std::vector<std::uint8_t> by_windows() const {
    const Memory m(*this, pages_, runs_);
    QuantizePagesParams p = m.params(*this);
    p.windows = m.windows.get(), p.window_table = m.table.get();
    p.sink_pages = kSinkPages, p.ring_pages = kRingPages, p.run_count = kSequences;
    check_cuda(quantize_pages(p, nullptr), "quantize_pages");
    check_cuda(cudaDeviceSynchronize(), "quantize_pages");
    return m.pages.host();
  }

  // From rows that were taken out of the windows.
  std::vector<std::uint8_t> by_rows() const {
    std::vector<PageRun> runs = runs_;
    std::vector<std::uint16_t> rows;
    for (PageRun& run : runs) {
      const int from = run.first_row;
      run.first_row = static_cast<int>(rows.size()) / (kHeads * d_);
      for (int t = 0; t < run.count; ++t)
        for (int h = 0; h < kHeads; ++h)
          for (int i = 0; i < d_; ++i) rows.push_back(element(from, t, h, i));
    }
    const Memory m(*this, pages_, runs);
    const DeviceArray<std::uint16_t> device_rows(rows);
    QuantizePagesParams p = m.params(*this);
    p.rows = device_rows.get(), p.run_count = kSequences;
    check_cuda(quantize_pages(p, nullptr), "quantize_pages");
    check_cuda(cudaDeviceSynchronize(), "quantize_pages");
    return m.pages.host();
  }

 private:
  struct Memory {
    DeviceArray<std::uint8_t> windows, pages;
    DeviceArray<std::int32_t> table, bad;
    DeviceArray<PageRun> runs;
    DeviceArray<float> clip, sigma;
    Memory(const ManyRuns& c, const std::vector<std::uint8_t>& its_pages, const std::vector<PageRun>& its_runs)
        : windows(c.windows_),
          pages(its_pages),
          table(c.table_),
          bad(std::vector<std::int32_t>(1, INT_MAX)),
          runs(its_runs),
          clip(c.clip_),
          sigma(c.sigma_) {}
    QuantizePagesParams params(const ManyRuns& c) const {
      QuantizePagesParams p{};
      p.runs = runs.get(), p.pages = pages.get(), p.clip = clip.get(), p.sigma = sigma.get(), p.bad = bad.get();
      p.layout = c.case_.side, p.page_bytes = c.case_.page_bytes, p.kv_heads = kHeads, p.matrix_heads = 1;
      p.encoder = c.case_.encoder, p.value_side = c.case_.value_side, p.rows_bfloat16 = true;
      return p;
    }
  };

  std::size_t window_bytes() const { return static_cast<std::size_t>(window_page_bytes(d_)); }
  std::uint16_t element(int first_row, int t, int head, int channel) const {
    const int ring = 64 * kRingPages, sequence = first_row / ring, slot = (first_row % ring + t) % ring;
    const int page = table_[static_cast<std::size_t>(sequence * (kSinkPages + kRingPages) + kSinkPages + slot / 64)];
    const std::size_t at = static_cast<std::size_t>(page * kHeads + head) * window_bytes() +
                           static_cast<std::size_t>(window_offset(d_, case_.value_side, slot % 64, channel));
    std::uint16_t x;
    std::memcpy(&x, windows_.data() + at, 2);
    return x;
  }

  RunCase case_;
  int d_;
  std::mt19937 random_;
  std::vector<std::uint8_t> windows_, pages_;
  std::vector<std::int32_t> table_;
  std::vector<PageRun> runs_;
  std::vector<float> clip_, sigma_;
};

TEST(QuantizeRuns, WindowsWriteWhatRowsWrite) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
  const std::uint8_t widths[4] = {4, 2, 0, 1};
  for (const int d : {64, 96, 128, 512}) {
    for (const bool blocks : {false, true}) {
      const SideLayout key = blocks ? band_side(d, widths, 0) : uniform_side(d, d % 64 == 0 ? d / 2 : d, false, 0);
      const SideLayout value = blocks ? band_side(d, widths, key.end()) : uniform_side(d, d, true, key.end());
      for (const bool value_side : {false, true}) {
        for (const QuantizeEncoder encoder : {QuantizeEncoder::kMinMax, QuantizeEncoder::kSearch}) {
          const ManyRuns runs({value_side ? value : key, value.end(), value_side, encoder});
          const std::vector<std::uint8_t> found = runs.by_windows(), wanted = runs.by_rows();
          EXPECT_TRUE(found == wanted) << "d " << d << " blocks " << blocks << " values " << value_side << " encoder "
                                       << static_cast<int>(encoder);
        }
      }
    }
  }
}

}  // namespace
}  // namespace oscar::kernels
