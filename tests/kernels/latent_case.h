// A random cache of one layer of latent attention, in memory of the host.
#pragma once

#include <array>
#include <numeric>
#include <random>

#include "tests/kernels/latent_reference.h"

namespace oscar::kernels {

struct LatentCase {
  int heads = 16;
  std::vector<int> lengths;
  std::array<std::uint8_t, 4> widths{4, 2, 1, 1};
  bool refined = false;
  float refined_share = 0.1f;  // size of what refines the first band
  int sink = 64, recent = 256;
  int page_splits = 0, window_splits = 0;
  float spread = 1.0f;  // standard deviation of the logits, roughly
  unsigned seed = 1;
  int spare_bytes = 0;    // between pages
  int slack_pages = 1;    // of the ring
  bool after = false;     // something is added to the outputs
  bool padded_q = false;  // heads of a longer row, as engines have latent and RoPE parts side by side

  // Filled by build().
  std::vector<std::uint8_t> pages{}, window_pages{};
  std::vector<std::int32_t> page_table{}, window_table{};
  std::vector<std::uint16_t> q{};
  std::vector<float> sigma{}, added{};
  LatentDecodeParams params{};

  static std::uint16_t bf16_bits(float x) {
    return static_cast<std::uint16_t>((std::bit_cast<std::uint32_t>(x) + 0x8000u) >> 16);
  }
  int batch() const { return static_cast<int>(lengths.size()); }
  std::size_t rows() const { return lengths.size() * static_cast<std::size_t>(heads); }

  void build() {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    LatentDecodeParams& p = params;
    std::copy(widths.begin(), widths.end(), p.widths), p.refined = refined;
    const LatentPage page = latent_page(p.widths);
    p.page_stride = page.bytes() + spare_bytes;
    p.sink = sink, p.recent = recent, p.sink_pages = (sink + 63) / 64, p.ring_pages = (recent + 63) / 64 + slack_pages;
    p.heads = heads, p.batch = batch(), p.scale = spread / 24.0f, p.out_float = true;
    p.page_splits = page_splits, p.window_splits = window_splits;
    int body = 0;
    p.max_pages = 1;
    const auto pages_of = [&](int n) { return std::max(0, n - sink - recent + 63) / 64; };
    for (const int n : lengths) p.max_pages = std::max(p.max_pages, pages_of(n)), body += pages_of(n);
    pages.resize(static_cast<std::size_t>((body + 2) * p.page_stride));
    for (auto& byte : pages) byte = static_cast<std::uint8_t>(random());
    for (int i = 0; i < body + 2; ++i) {
      std::uint8_t* at = pages.data() + i * p.page_stride;
      for (int plane = 0; plane < page.codes.planes; ++plane) {
        for (int t = 0; t < kPageTokens; ++t) {
          const int byte =
              random() % 50 == 0 ? static_cast<int>(random() % 256) - 128 : static_cast<int>(random() % 81) - 40;
          at[page.codes.param_byte(t, plane)] = static_cast<std::uint8_t>(byte);
        }
      }
      for (int c = 0; c < kRopePartBytes; c += 2) {
        const std::uint16_t x = bf16_bits(normal(random));
        std::memcpy(at + page.rope_offset() + c, &x, 2);
      }
    }
    const int columns = p.sink_pages + p.ring_pages;
    window_pages.resize(static_cast<std::size_t>(batch() * columns + 2) * kLatentWindowBytes);
    for (std::size_t i = 0; i < window_pages.size(); i += 2) {
      const std::uint16_t x = bf16_bits(normal(random));
      std::memcpy(window_pages.data() + i, &x, 2);
    }
    std::vector<std::int32_t> order(static_cast<std::size_t>(body + 2)),
        window_order(static_cast<std::size_t>(batch() * columns + 2));
    std::iota(order.begin(), order.end(), 0), std::iota(window_order.begin(), window_order.end(), 0);
    std::shuffle(order.begin(), order.end(), random), std::shuffle(window_order.begin(), window_order.end(), random);
    page_table.assign(static_cast<std::size_t>(batch() * p.max_pages), 0);
    window_table.assign(window_order.begin(), window_order.begin() + batch() * columns);
    std::size_t next = 0;
    for (int b = 0; b < batch(); ++b) {
      for (int i = 0; i < pages_of(lengths[static_cast<std::size_t>(b)]); ++i) {
        page_table[static_cast<std::size_t>(b * p.max_pages + i)] = order[next++];
      }
    }
    sigma.clear();
    for (const int w : widths) {
      sigma.push_back((w == 4 ? 0.22f : w == 2 ? 0.9f : 2.0f) * (0.5f + static_cast<float>(random() % 100) / 100.0f));
    }
    if (refined) sigma.back() *= refined_share;
    added.clear();
    for (int c = 0; c < kLatentChannels; ++c) added.push_back(normal(random));
    const int latent_row = padded_q ? kLatentRow : kLatentChannels, pe_row = padded_q ? kLatentRow : kRopeChannels;
    q.resize(rows() * (kLatentRow + (padded_q ? kLatentRow : 0)));
    for (auto& x : q) x = bf16_bits(normal(random));
    p.q_latent_stride[1] = latent_row, p.q_pe_stride[1] = pe_row;
    p.q_latent_stride[0] = static_cast<std::int64_t>(heads) * latent_row;
    p.q_pe_stride[0] = static_cast<std::int64_t>(heads) * pe_row;
    point(pages.data(), window_pages.data(), page_table.data(), window_table.data(), lengths.data(), sigma.data(),
          q.data(), added.data());
  }

  void point(const std::uint8_t* code, const std::uint8_t* windows, const std::int32_t* table,
             const std::int32_t* windows_of, const std::int32_t* tokens, const float* deviations,
             const std::uint16_t* queries, const float* more) {
    LatentDecodeParams& p = params;
    p.pages = code, p.window_pages = windows, p.page_table = table, p.window_table = windows_of, p.lengths = tokens;
    p.sigma = deviations, p.q_latent = queries, p.after = after ? more : nullptr;
    p.q_pe = queries + (padded_q ? static_cast<std::int64_t>(kLatentChannels)
                                 : static_cast<std::int64_t>(rows()) * kLatentChannels);
  }
};

// |out - reference| / |reference|; NaN when anything is NaN.
inline double relative_error(const std::vector<float>& out, const std::vector<double>& reference) {
  double difference = 0.0, norm = 0.0;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double apart = static_cast<double>(out[i]) - reference[i];
    difference += apart * apart, norm += reference[i] * reference[i];
  }
  return norm == 0.0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

}  // namespace oscar::kernels
