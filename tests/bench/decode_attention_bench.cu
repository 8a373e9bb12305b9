// Times the decode attention kernel on random caches: L2 flushed before every call, CUDA graph replay, median.
// Usage: decode_attention_bench [--json FILE] [--repeat N] [--layout NAME ...] [--rotated-mean]
//                               [--kernel auto|stream|half|cluster|parts ...]
//                               [BATCHxCONTEXTxQ_HEADSxKV_HEADS[xHEAD_DIM]]...
// --rotated-mean: keys of `blocks` pages without the mean they had before RoPE, whose part of the logits is computed.
// Layouts: uniform, or the widths of the four blocks of keys and of values, such as 4211-2222. Without --layout:
// uniform and two layouts of `blocks` with as many bytes.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdio>
#include <cstdlib>

#include "kernels/decode/page_queries.h"
#include "kernels/decode/tile_phases.h"
#include "tests/bench/attention_rows.h"
#include "tests/bench/time_graph.h"
#include "tests/kernels/decode_case.h"

namespace oscar::kernels {
namespace {

__device__ unsigned hash(unsigned long long i, unsigned seed) {
  unsigned long long x = i * 0x9E3779B97F4A7C15ULL + seed;
  x = (x ^ (x >> 31)) * 0xBF58476D1CE4E5B9ULL;
  return static_cast<unsigned>(x >> 32);
}
// Random codes; scales and zero points of plausible rows, scale bytes within an octave of their deviation.
__global__ void fill_code_pages(std::uint8_t* pages, long long count, PageLayout page) {
  const long long words = count * page.bytes() / 2;
  for (long long i = blockIdx.x * 256LL + threadIdx.x; i < words; i += gridDim.x * 256LL) {
    const int inside = static_cast<int>(i * 2 % page.bytes());
    const unsigned r = hash(i, 1);
    const float u = (r & 0xffff) / 65536.0f;
    const auto of = [&](const SideLayout& side) { return inside >= side.param_offset && inside < side.end(); };
    std::uint16_t* at = reinterpret_cast<std::uint16_t*>(pages) + i;
    if (!of(page.key) && !of(page.value)) {
      *at = static_cast<std::uint16_t>(r);
    } else if (page.key.params == ParamKind::kScaleByte) {
      *at = static_cast<std::uint16_t>(r & 0x1f1f);
    } else {
      *reinterpret_cast<__half*>(at) = __float2half((inside & 2) == 0 ? 0.3f + u : 1.2f + 0.6f * u);
    }
  }
}
__global__ void fill_float(float* x, int n, float value) {
  for (int i = threadIdx.x; i < n; i += blockDim.x) x[i] = value;
}
__global__ void fill_bf16(__nv_bfloat16* x, long long n, unsigned seed) {
  for (long long i = blockIdx.x * 256LL + threadIdx.x; i < n; i += gridDim.x * 256LL) {
    x[i] = __float2bfloat16((hash(i, seed) & 0xffff) / 32768.0f - 1.0f);
  }
}

struct Layout {
  std::string name = "uniform";
  bool blocks = false;
  std::uint8_t key_widths[4] = {}, value_widths[4] = {};

  static bool parse(const std::string& text, Layout& out) {
    out = {};
    out.name = text;
    if (text == "uniform") return true;
    out.blocks = true;
    if (text.size() != 9 || text[4] != '-') return false;
    for (int i = 0; i < 4; ++i) {
      out.key_widths[i] = static_cast<std::uint8_t>(text[i] - '0');
      out.value_widths[i] = static_cast<std::uint8_t>(text[5 + i] - '0');
    }
    return true;
  }
};

// Bytes the kernel must read: codes and parameters of the body, BF16 rows of the windows (tokens, not tiles).
double cache_bytes(const AttentionShape& s, const PageLayout& page, int sink, int recent) {
  const double body = std::max(0, s.context - sink - recent), windows = std::min(s.context, sink + recent);
  return s.batch * static_cast<double>(s.kv_heads) * (body * page.bytes() / kPageTokens + windows * 4.0 * s.head_dim);
}

// us < 0: this kernel does not serve the shape.
Timing time_shape(const AttentionShape& s, const Layout& layout, DecodeKernel kernel, bool rotated_mean, int repeat,
                  const DeviceArray<std::uint8_t>& flush, std::size_t flush_bytes) {
  PagedDecodeParams p{};
  p.batch = s.batch, p.query_heads = s.query_heads, p.kv_heads = s.kv_heads, p.head_dim = s.head_dim;
  p.blocks = layout.blocks, p.kernel = kernel;
  std::copy(layout.key_widths, layout.key_widths + 4, p.key_widths);
  std::copy(layout.value_widths, layout.value_widths + 4, p.value_widths);
  const PageLayout page = decode_page_layout(p);
  const int sink = 64, recent = 256;
  const int body_pages = (std::max(0, s.context - sink - recent) + kPageTokens - 1) / kPageTokens;
  const int max_pages = std::max(1, body_pages), ring_pages = 5, window_pages = 1 + ring_pages;
  const long long pages = static_cast<long long>(s.batch) * max_pages;
  DeviceArray<std::uint8_t> d_pages(pages * s.kv_heads * page.bytes());
  fill_code_pages<<<1024, 256>>>(d_pages.get(), pages * s.kv_heads, page);
  DeviceArray<float> d_sigma(4 * s.kv_heads);
  fill_float<<<1, 256>>>(d_sigma.get(), 4 * s.kv_heads, 0.4f);
  const long long window_elements =
      static_cast<long long>(s.batch) * window_pages * s.kv_heads * window_page_bytes(s.head_dim) / 2;
  DeviceArray<__nv_bfloat16> d_windows(window_elements);
  fill_bf16<<<1024, 256>>>(d_windows.get(), window_elements, 2);
  const long long q_elements = static_cast<long long>(s.batch) * s.query_heads * s.head_dim;
  DeviceArray<__nv_bfloat16> d_q(q_elements), d_out(q_elements);
  fill_bf16<<<64, 256>>>(d_q.get(), q_elements, 3);
  std::mt19937 random(1);
  std::vector<std::int32_t> table(pages), window_table(s.batch * window_pages), lengths(s.batch, s.context);
  std::iota(table.begin(), table.end(), 0);
  std::shuffle(table.begin(), table.end(), random);
  std::iota(window_table.begin(), window_table.end(), 0);
  DeviceArray<std::int32_t> d_table(table), d_window_table(window_table), d_lengths(lengths);
  const bool positions = rotated_mean && layout.blocks;
  const std::size_t bytes =
      decode_attention_workspace_bytes(s.head_dim, s.query_heads / s.kv_heads, s.batch, s.kv_heads,
                                       positions ? page_queries(max_pages, window_pages) : 0);
  DeviceArray<std::uint8_t> workspace(bytes);
  check_cuda(cudaMemset(workspace.get(), 0, bytes), "cudaMemset");
  p.key_sigma = p.value_sigma = d_sigma.get();
  p.q = d_q.get(), p.out = d_out.get(), p.pages = d_pages.get(), p.page_table = d_table.get();
  p.window_pages = reinterpret_cast<std::uint8_t*>(d_windows.get()), p.window_table = d_window_table.get();
  p.lengths = d_lengths.get(), p.workspace = workspace.get();
  p.max_pages = max_pages;
  p.sink = sink, p.recent = recent, p.flush = 1, p.sink_pages = 1, p.ring_pages = ring_pages;
  p.scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));

  const int phase_rows = positions ? s.context : 0;
  DeviceArray<float> d_phases(std::max<long long>(1, static_cast<long long>(phase_rows) * s.head_dim)),
      d_position_query(std::max<long long>(1, phase_rows > 0 ? q_elements : 0));
  std::vector<std::uint16_t> tile(tile_phases_count(s.head_dim));
  fill_tile_phases(s.head_dim, std::vector<float>(s.head_dim / 2, 0.01f).data(), tile.data());
  DeviceArray<std::uint16_t> d_tile(tile);
  if (phase_rows > 0) {
    fill_float<<<1, 1024>>>(d_phases.get(), phase_rows * s.head_dim, 0.5f);
    fill_float<<<1, 1024>>>(d_position_query.get(), static_cast<int>(q_elements), 0.1f);
    p.position_query = d_position_query.get(), p.rope_phases = d_phases.get(), p.tile_phases = d_tile.get();
  }

  const cudaError_t first = decode_attention(p, nullptr);
  if (first == cudaErrorInvalidValue && (kernel == DecodeKernel::kCluster || kernel == DecodeKernel::kParts))
    return {-1.0, 0.0};
  check_cuda(first, "decode_attention");
  check_cuda(cudaDeviceSynchronize(), "decode_attention");
  const double us =
      time_graph([&](cudaStream_t stream) { return decode_attention(p, stream); }, repeat, flush, flush_bytes);
  return {us, cache_bytes(s, page, sink, recent)};
}

int main_with(int argc, char** argv) {
  int repeat = 25;
  bool rotated_mean = false;
  std::string json;
  std::vector<AttentionShape> shapes;
  std::vector<Layout> layouts;
  std::vector<std::string> kernels;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    AttentionShape s;
    if (a == "--repeat" && i + 1 < argc) {
      repeat = std::atoi(argv[++i]);
    } else if (a == "--rotated-mean") {
      rotated_mean = true;
    } else if (a == "--json" && i + 1 < argc) {
      json = argv[++i];
    } else if (a == "--layout" && i + 1 < argc && Layout::parse(argv[i + 1], layouts.emplace_back())) {
      ++i;
    } else if (a == "--kernel" && i + 1 < argc) {
      kernels.push_back(argv[++i]);
    } else if (s.parse(a)) {
      shapes.push_back(s);
    } else {
      std::fprintf(stderr, "unknown argument %s\n", a.c_str());
      return 2;
    }
  }
  if (shapes.empty()) {
    shapes = published_shapes();
    for (auto [q, h] : {std::pair{64, 8}, {96, 8}, {40, 8}, {32, 32}}) shapes.push_back({8, 32768, q, h});
  }
  if (layouts.empty()) {
    for (const char* name : {"uniform", "4211-4211", "2222-2222"}) Layout::parse(name, layouts.emplace_back());
  }
  if (kernels.empty()) kernels.push_back("auto");
  cudaDeviceProp device;
  check_cuda(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  std::printf("%s, %d multiprocessors\n", device.name, device.multiProcessorCount);
  const std::size_t flush_bytes = 256u << 20;
  DeviceArray<std::uint8_t> flush(flush_bytes);
  AttentionRows rows(device.name);
  for (const AttentionShape& s : shapes) {
    for (const Layout& layout : layouts) {
      for (const std::string& name : kernels) {
        const DecodeKernel kernel = name == "stream"    ? DecodeKernel::kStream
                                    : name == "half"    ? DecodeKernel::kHalfStream
                                    : name == "cluster" ? DecodeKernel::kCluster
                                    : name == "parts"   ? DecodeKernel::kParts
                                                        : DecodeKernel::kAuto;
        const Timing timing = time_shape(s, layout, kernel, rotated_mean, repeat, flush, flush_bytes);
        if (timing.us < 0) continue;
        rows.add(s, {{"layout", layout.name}, {"kernel", name}}, timing);
      }
    }
  }
  if (!json.empty()) rows.write(json);
  return 0;
}

}  // namespace
}  // namespace oscar::kernels

int main(int argc, char** argv) { return oscar::kernels::run_program(oscar::kernels::main_with, argc, argv); }
