// A random cache of one layer for the decode kernel, and attention over it in double precision on the host.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "kernels/decode/decode_attention.h"
#include "tests/kernels/device_array.h"

namespace oscar::kernels {

struct DecodeCase {
  int batch, query_heads, kv_heads, head_dim;
  int sink = 64, recent = 256, flush = 1, sliding_window = 0;
  float soft_cap = 0.0f;
  bool sinks = false;
  float score_spread = 1.0f;  // standard deviation of the logits, roughly
  std::vector<int> lengths;
  unsigned seed = 1;
  bool blocks = false;  // layout of the pages; widths and kernel as in PagedDecodeParams
  std::array<std::uint8_t, 4> key_widths{}, value_widths{};
  DecodeKernel kernel = DecodeKernel::kAuto;

  // Filled by build().
  PageLayout page;
  std::vector<float> key_sigma, value_sigma;
  int max_pages = 1, sink_pages = 1, ring_pages = 1;
  std::vector<std::uint8_t> pages, window_pages;
  std::vector<std::int32_t> page_table, window_table;
  std::vector<__nv_bfloat16> q;
  std::vector<float> sink_logits;

  int body_end(int n) const { return sink + std::max(0, n - sink - recent) / flush * flush; }
  float scale() const { return 1.0f / std::sqrt(static_cast<float>(head_dim)); }

  void build() {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    sink_pages = std::max(1, (sink + kPageTokens - 1) / kPageTokens);
    ring_pages = (recent + flush - 1 + kTileTokens - 1 + kPageTokens - 1) / kPageTokens;
    int body_pages = 0;
    for (int n : lengths) {
      const int here = (body_end(n) - sink + kPageTokens - 1) / kPageTokens;
      max_pages = std::max(max_pages, here);
      body_pages += here;
    }
    const int spare = 3, window_per_sequence = sink_pages + ring_pages;
    page = decode_page_layout(params());
    pages.assign(static_cast<std::size_t>(body_pages + spare) * kv_heads * page.bytes(), 0);
    window_pages.assign(
        static_cast<std::size_t>(batch * window_per_sequence + spare) * kv_heads * window_page_bytes(head_dim), 0);
    // Random code bytes everywhere; parameters of a plausible row: values around zero, spread over four levels.
    for (auto& byte : pages) byte = static_cast<std::uint8_t>(random());
    blocks ? spread_scale_bytes(random) : spread_pairs(random);
    for (std::size_t i = 0; i < window_pages.size(); i += 2) {
      const __nv_bfloat16 x = __float2bfloat16(normal(random));
      std::memcpy(window_pages.data() + i, &x, 2);
    }
    std::vector<std::int32_t> order(body_pages + spare), window_order(batch * window_per_sequence + spare);
    std::iota(order.begin(), order.end(), 0);
    std::iota(window_order.begin(), window_order.end(), 0);
    std::shuffle(order.begin(), order.end(), random);
    std::shuffle(window_order.begin(), window_order.end(), random);
    page_table.assign(static_cast<std::size_t>(batch) * max_pages, 0);
    window_table.assign(static_cast<std::size_t>(batch) * window_per_sequence, 0);
    std::size_t next = 0, next_window = 0;
    for (int b = 0; b < batch; ++b) {
      const int here = (body_end(lengths[b]) - sink + kPageTokens - 1) / kPageTokens;
      for (int i = 0; i < here; ++i) page_table[b * max_pages + i] = order[next++];
      for (int i = 0; i < window_per_sequence; ++i)
        window_table[b * window_per_sequence + i] = window_order[next_window++];
    }
    q.resize(static_cast<std::size_t>(batch) * query_heads * head_dim);
    for (auto& x : q) x = __float2bfloat16(normal(random));
    sink_logits.resize(query_heads);
    for (auto& x : sink_logits) x = normal(random);
  }

  // What does not depend on memory.
  PagedDecodeParams params() const {
    PagedDecodeParams p{};
    p.batch = batch, p.query_heads = query_heads, p.kv_heads = kv_heads, p.head_dim = head_dim, p.max_pages = max_pages;
    p.sink = sink, p.recent = recent, p.flush = flush, p.sink_pages = sink_pages, p.ring_pages = ring_pages;
    p.sliding_window = sliding_window, p.scale = scale(), p.soft_cap = soft_cap, p.out_float = true;
    p.blocks = blocks, p.kernel = kernel;
    std::copy(key_widths.begin(), key_widths.end(), p.key_widths);
    std::copy(value_widths.begin(), value_widths.end(), p.value_widths);
    return p;
  }

  // Scales and zero points of the whole pool.
  void spread_pairs(std::mt19937& random) {
    std::normal_distribution<float> normal;
    for (std::size_t at = 0; at < pages.size(); at += page.bytes()) {
      for (int t = 0; t < kPageTokens; ++t) {
        __half* key = reinterpret_cast<__half*>(pages.data() + at + page.key.param_byte(t, 0));
        key[0] = __float2half(score_spread * (0.5f + 0.5f * std::fabs(normal(random))));
        key[1] = __float2half(1.5f + 0.3f * normal(random));
        __half* value = reinterpret_cast<__half*>(pages.data() + at + page.value.param_byte(t, 0));
        value[0] = __float2half(0.3f + std::fabs(normal(random)));
        value[1] = __float2half(1.5f + 0.3f * normal(random));
      }
    }
  }
  // Scale bytes within an octave or so of their deviations; deviations such that wide and narrow blocks weigh alike.
  void spread_scale_bytes(std::mt19937& random) {
    const auto uniform = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    for (std::size_t at = 0; page.bytes() > 0 && at < pages.size(); at += page.bytes()) {
      for (const SideLayout* side : {&page.key, &page.value})
        for (int plane = 0; plane < side->planes; ++plane)
          for (int t = 0; t < kPageTokens; ++t)
            pages[at + side->param_byte(t, plane)] =
                static_cast<std::uint8_t>(uniform(0, 50) == 0 ? uniform(-128, 127) : uniform(-40, 40));
    }
    const auto fill = [&](std::vector<float>& sigma, const std::array<std::uint8_t, 4>& widths, float spread) {
      for (int i = 0; i < 4 * kv_heads; ++i) {
        const float level = widths[i % 4] == 4 ? 4.6f : (widths[i % 4] == 2 ? 1.1f : 0.5f);
        sigma.push_back(spread / level * (0.3f + 0.1f * static_cast<float>(uniform(0, 12))));
      }
    };
    key_sigma.clear(), value_sigma.clear();
    fill(key_sigma, key_widths, score_spread);
    fill(value_sigma, value_widths, 1.0f);
    if (kv_heads > 1) key_sigma[5] = value_sigma[6] = 0.0f;  // a block without spread
  }

  std::uint8_t* code_page(int b, int h, int index) {
    return pages.data() + (static_cast<std::size_t>(page_table[b * max_pages + index]) * kv_heads + h) * page.bytes();
  }
  static int code(const std::uint8_t* plane, int bit, int width) {
    return plane[bit / 8] >> (bit % 8) & ((1 << width) - 1);
  }
  double code_element(const std::uint8_t* bytes, int h, int token, int channel, bool value) const {
    const SideLayout& side = value ? page.value : page.key;
    for (int i = 0; i < side.planes; ++i) {
      const PlaneLayout& plane = side.plane[i];
      const int at = channel - plane.first_channel;
      if (at < 0 || at >= plane.channels) continue;
      const int c =
          code(bytes + plane.offset, value ? plane.value_bit(token, at) : plane.key_bit(token, at), plane.width);
      const std::uint8_t* param = bytes + side.param_byte(token, i);
      if (blocks) {
        const double sigma = (value ? value_sigma : key_sigma)[h * 4 + plane.sigma];
        return sigma * std::exp2(static_cast<std::int8_t>(*param) / 32.0) * (c + 0.5 - 0.5 * (1 << plane.width));
      }
      __half s, z;
      std::memcpy(&s, param, 2);
      std::memcpy(&z, param + 2, 2);
      return (c - static_cast<double>(__half2float(z))) * __half2float(s);
    }
    return 0.0;
  }
  // Element of the cache as the reader of the format sees it.
  double element(int b, int h, int position, int channel, bool value) {
    const int n = lengths[b];
    const int end = body_end(n);
    if (position >= sink && position < end) {
      const int i = position - sink;
      return code_element(code_page(b, h, i / kPageTokens), h, i % kPageTokens, channel, value);
    }
    const int slot = position < sink ? position : position % (ring_pages * kPageTokens);
    const int page = position < sink ? slot / kPageTokens : sink_pages + slot / kPageTokens;
    const std::uint8_t* base =
        window_pages.data() +
        (static_cast<std::size_t>(window_table[b * (sink_pages + ring_pages) + page]) * kv_heads + h) *
            window_page_bytes(head_dim);
    __nv_bfloat16 x;
    std::memcpy(&x, base + window_offset(head_dim, value, slot % kPageTokens, channel), 2);
    return __bfloat162float(x);
  }

  // All cores: the items are independent.
  std::vector<double> reference() {
    std::vector<double> out(q.size(), 0.0);
    std::atomic<int> next{0};
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i) {
      threads.emplace_back([&] {
        for (int item = next++; item < batch * kv_heads; item = next++) {
          reference_item(item / kv_heads, item % kv_heads, out.data());
        }
      });
    }
    for (std::thread& t : threads) t.join();
    return out;
  }
  void reference_item(int b, int h, double* out) {
    const int group = query_heads / kv_heads, n = lengths[b];
    if (n == 0) return;
    const int first = sliding_window > 0 ? std::max(0, n - sliding_window) : 0;
    std::vector<double> keys(static_cast<std::size_t>(n) * head_dim), values(keys.size());
    for (int j = first; j < n; ++j)
      for (int c = 0; c < head_dim; ++c) {
        keys[static_cast<std::size_t>(j) * head_dim + c] = element(b, h, j, c, false);
        values[static_cast<std::size_t>(j) * head_dim + c] = element(b, h, j, c, true);
      }
    for (int head = h * group; head < (h + 1) * group; ++head) {
      const std::size_t at = (static_cast<std::size_t>(b) * query_heads + head) * head_dim;
      std::vector<double> logits(n, -INFINITY);
      double top = sinks ? sink_logits[head] : -INFINITY;
      for (int j = first; j < n; ++j) {
        double x = 0;
        for (int c = 0; c < head_dim; ++c)
          x += static_cast<double>(__bfloat162float(q[at + c])) * keys[static_cast<std::size_t>(j) * head_dim + c];
        x *= scale();
        if (soft_cap > 0) x = soft_cap * std::tanh(x / soft_cap);
        logits[j] = x;
        top = std::max(top, x);
      }
      double sum = sinks ? std::exp(sink_logits[head] - top) : 0.0;
      for (int j = first; j < n; ++j) {
        const double p = std::exp(logits[j] - top);
        sum += p;
        for (int c = 0; c < head_dim; ++c) out[at + c] += p * values[static_cast<std::size_t>(j) * head_dim + c];
      }
      for (int c = 0; c < head_dim; ++c) out[at + c] /= sum;
    }
  }

  // Runs the kernel `times` times into poisoned output; returns the last result, checks that all runs agree bit for
  // bit. shared: a workspace to use, zeroed before its first use.
  std::vector<float> run(int times = 2, void* shared = nullptr) {
    DeviceArray<std::uint8_t> d_pages(pages), d_windows(window_pages);
    DeviceArray<std::int32_t> d_table(page_table), d_window_table(window_table), d_lengths(lengths);
    DeviceArray<__nv_bfloat16> d_q(q);
    DeviceArray<float> d_sinks(sink_logits), d_out(q.size());
    const std::size_t bytes = decode_attention_workspace_bytes(head_dim, query_heads / kv_heads, batch, kv_heads);
    DeviceArray<std::uint8_t> workspace(bytes);
    check_cuda(cudaMemset(workspace.get(), 0, bytes), "cudaMemset");
    DeviceArray<float> d_key_sigma(key_sigma), d_value_sigma(value_sigma);
    PagedDecodeParams p = params();
    p.q = d_q.get(), p.out = d_out.get(), p.pages = d_pages.get(), p.page_table = d_table.get();
    p.window_pages = d_windows.get(), p.window_table = d_window_table.get(), p.lengths = d_lengths.get();
    p.sink_logits = sinks ? d_sinks.get() : nullptr;
    p.key_sigma = d_key_sigma.get(), p.value_sigma = d_value_sigma.get();
    p.workspace = shared != nullptr ? shared : workspace.get();
    std::vector<float> first;
    for (int i = 0; i < times; ++i) {
      check_cuda(cudaMemset(d_out.get(), 0xff, q.size() * sizeof(float)), "cudaMemset");
      check_cuda(decode_attention(p, nullptr), "decode_attention");
      check_cuda(cudaDeviceSynchronize(), "decode_attention");
      std::vector<float> out = d_out.host();
      if (i > 0 && std::memcmp(out.data(), first.data(), out.size() * sizeof(float)) != 0) {
        throw std::runtime_error("two runs differ");
      }
      first = std::move(out);
    }
    return first;
  }
};

// |out - reference| / |reference| over the sequences that have tokens; NaN when anything is NaN.
inline double relative_error(const std::vector<float>& out, const std::vector<double>& reference, const DecodeCase& c) {
  double difference = 0, norm = 0;
  const std::size_t row = static_cast<std::size_t>(c.query_heads) * c.head_dim;
  for (int b = 0; b < c.batch; ++b) {
    if (c.lengths[b] == 0) continue;
    for (std::size_t i = b * row; i < (b + 1) * row; ++i) {
      difference += (out[i] - reference[i]) * (out[i] - reference[i]);
      norm += reference[i] * reference[i];
    }
  }
  return norm == 0 ? std::sqrt(difference) : std::sqrt(difference / norm);
}

}  // namespace oscar::kernels
