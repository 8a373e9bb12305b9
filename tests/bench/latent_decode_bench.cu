// Times the decode kernel of latent attention on random caches: L2 flushed before every call, CUDA graph replay,
// median. Usage: latent_decode_bench [--repeat N] [--splits PAGES,WINDOWS] [BATCHxCONTEXTxHEADS ...] One line of JSON
// for each shape and layout: microseconds, and bytes of the cache that a call reads.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "kernels/latent/latent_decode.h"
#include "tests/bench/time_graph.h"

namespace oscar::kernels {
namespace {

struct Shape {
  int batch, context, heads;
};

// Random codes; scale bytes of 0; BF16 numbers of at most 2 (the bits of an exponent are fixed).
__global__ void fill_pages(std::uint32_t* words, long long count, LatentPage page) {
  for (long long i = blockIdx.x * 256LL + threadIdx.x; i < count; i += gridDim.x * 256LL) {
    const int inside = static_cast<int>(i * 4 % page.bytes());
    const std::uint32_t r = static_cast<std::uint32_t>((i + 1) * 0x9E3779B97F4A7C15ULL >> 32);
    words[i] = inside < page.codes.param_offset ? r
               : inside < page.rope_offset()    ? 0u
                                                : (r & 0x807f807fu) | 0x3f803f80u;
  }
}
__global__ void fill_halves(std::uint32_t* words, long long count) {
  for (long long i = blockIdx.x * 256LL + threadIdx.x; i < count; i += gridDim.x * 256LL) {
    words[i] = (static_cast<std::uint32_t>((i + 1) * 0x9E3779B97F4A7C15ULL >> 32) & 0x807f807fu) | 0x3f803f80u;
  }
}

void run(const Shape& s, const char* widths, int repeat, int page_splits, int window_splits) {
  LatentDecodeParams p{};
  for (int b = 0; b < 4; ++b) p.widths[b] = static_cast<std::uint8_t>(widths[b] - '0');
  p.refined = widths[4] == 'r';
  const LatentPage page = latent_page(p.widths);
  p.batch = s.batch, p.heads = s.heads, p.sink = 64, p.recent = 256, p.sink_pages = 1, p.ring_pages = 5;
  p.page_stride = page.bytes(), p.scale = 0.05f, p.page_splits = page_splits, p.window_splits = window_splits;
  p.max_pages = (s.context - p.sink - p.recent + 63) / 64;
  p.q_latent_stride[0] = s.heads * 512LL, p.q_latent_stride[1] = 512, p.q_pe_stride[0] = s.heads * 64LL,
  p.q_pe_stride[1] = 64;
  const long long pages = static_cast<long long>(s.batch) * p.max_pages, windows = s.batch * 6LL;
  std::vector<std::int32_t> table, window_table;
  for (long long i = 0; i < pages; ++i) table.push_back(static_cast<std::int32_t>(i * 7919 % pages));
  for (int i = 0; i < windows; ++i) window_table.push_back(i);
  const DeviceArray<std::uint8_t> d_pages(static_cast<std::size_t>(pages * page.bytes())),
      d_windows(static_cast<std::size_t>(windows * kLatentWindowBytes));
  const DeviceArray<std::int32_t> d_table(table), d_window_table(window_table),
      d_lengths(std::vector<std::int32_t>(static_cast<std::size_t>(s.batch), s.context));
  const std::size_t numbers = static_cast<std::size_t>(s.batch) * static_cast<std::size_t>(s.heads) * 512;
  const DeviceArray<std::uint16_t> q(numbers), q_pe(numbers / 8), out(numbers);
  const DeviceArray<float> sigma(std::vector<float>(4, 0.3f));
  fill_pages<<<1024, 256>>>(reinterpret_cast<std::uint32_t*>(d_pages.get()), pages * page.bytes() / 4, page);
  fill_halves<<<1024, 256>>>(reinterpret_cast<std::uint32_t*>(d_windows.get()), windows * kLatentWindowBytes / 4);
  fill_halves<<<1024, 256>>>(reinterpret_cast<std::uint32_t*>(q.get()), static_cast<long long>(numbers / 2));
  fill_halves<<<1024, 256>>>(reinterpret_cast<std::uint32_t*>(q_pe.get()), static_cast<long long>(numbers / 16));
  p.q_latent = q.get(), p.q_pe = q_pe.get(), p.out = out.get(), p.pages = d_pages.get(), p.page_table = d_table.get();
  p.window_pages = d_windows.get(), p.window_table = d_window_table.get(), p.lengths = d_lengths.get();
  p.sigma = sigma.get();
  const DeviceArray<std::uint8_t> workspace(latent_decode_workspace_bytes(p));
  p.workspace = workspace.get();
  constexpr std::size_t kFlush = 256 << 20;
  const DeviceArray<std::uint8_t> flush(kFlush);
  check_cuda(latent_decode(p, nullptr), "latent_decode");
  check_cuda(cudaDeviceSynchronize(), "latent_decode");
  const double time = time_graph([&](cudaStream_t stream) { return latent_decode(p, stream); }, repeat, flush, kFlush);
  const double read = static_cast<double>(pages) * page.bytes() + s.batch * (p.sink + p.recent) * 1152.0;
  std::printf(
      "{\"kernel\": \"oscar latent\", \"widths\": \"%s\", \"batch\": %d, \"context\": %d, \"heads\": %d, "
      "\"us\": %.2f, \"bytes\": %.0f, \"tb_per_s\": %.3f}\n",
      widths, s.batch, s.context, s.heads, time, read, read / time * 1e-6);
  std::fflush(stdout);
}

int run_all(int count, char** arguments) {
  int repeat = 25, page_splits = 0, window_splits = 0;
  std::vector<Shape> shapes;
  for (int i = 1; i < count; ++i) {
    const std::string text = arguments[i];
    Shape s{};
    if (text == "--repeat" && i + 1 < count) {
      repeat = std::atoi(arguments[++i]);
    } else if (text == "--splits" && i + 1 < count &&
               std::sscanf(arguments[i + 1], "%d,%d", &page_splits, &window_splits) == 2) {
      ++i;
    } else if (std::sscanf(text.c_str(), "%dx%dx%d", &s.batch, &s.context, &s.heads) == 3 && s.context > 384) {
      shapes.push_back(s);
    } else {
      std::fprintf(stderr, "latent_decode_bench: %s is no option and no BATCHxCONTEXTxHEADS\n", text.c_str());
      return 2;
    }
  }
  if (shapes.empty()) {
    for (const int heads : {16, 128})
      for (const int batch : {1, 32})
        for (const int context : {8192, 32768, 100000}) shapes.push_back({batch, context, heads});
  }
  for (const Shape& s : shapes)
    for (const char* widths : {"4211", "2222", "4444", "4422r", "4201r", "4444r"})
      run(s, widths, repeat, page_splits, window_splits);
  return 0;
}

}  // namespace
}  // namespace oscar::kernels

int main(int count, char** arguments) {
  try {
    return oscar::kernels::run_all(count, arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "latent_decode_bench: %s\n", error.what());
    return 1;
  }
}
