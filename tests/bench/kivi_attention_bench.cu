// Times decode attention over pages of OScaR and KIVI (keys per channel) on random caches, windows 64/256.
// Usage: kivi_attention_bench [--json FILE] [--repeat N] [BATCHxCONTEXTxQ_HEADSxKV_HEADS ...]
#include <cuda_fp16.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <tuple>

#include "kernels/kivi/kivi_attention.h"
#include "tests/bench/attention_rows.h"
#include "tests/bench/time_graph.h"

namespace oscar::kernels {
namespace {

constexpr int kDim = 128, kSink = 64, kRecent = 256;

// Random words below `first_param` of each head's bytes, scale .1 and offset -.15 behind them; norms of 1.
__global__ void fill_pages(std::uint32_t* words, long long count, int page_words, int norm_words, int head_words,
                           int code_words) {
  for (long long i = blockIdx.x * 256LL + threadIdx.x; i < count; i += gridDim.x * 256LL) {
    const int in_page = static_cast<int>(i % page_words);
    if (in_page < norm_words) {
      words[i] = __float_as_uint(1.0f);
    } else if ((in_page - norm_words) % head_words < code_words) {
      words[i] = static_cast<std::uint32_t>((i + 1) * 0x9E3779B97F4A7C15ULL >> 29);
    } else {
      words[i] = 0xb0cd2e66u;
    }
  }
}
__global__ void fill_rows(float* q, long long q_count, std::uint16_t* rows, long long row_count) {
  for (long long i = blockIdx.x * 256LL + threadIdx.x; i < q_count; i += gridDim.x * 256LL)
    q[i] = ((i * 2654435761u >> 8) % 2001) * 1e-3f - 1.0f;
  for (long long i = blockIdx.x * 256LL + threadIdx.x; i < row_count; i += gridDim.x * 256LL)
    rows[i] = static_cast<std::uint16_t>(0x3e00 + (i * 2654435761u >> 12) % 0x180);
}

Timing time_shape(const AttentionShape& s, int group, bool norms, int repeat, const DeviceArray<std::uint8_t>& flush,
                  std::size_t flush_bytes) {
  // Keys leave the window in blocks of `group` tokens, values one by one.
  const int behind = s.context - kSink, value_body = behind - kRecent, key_body = value_body / group * group;
  const int pages = (value_body + 127) / 128, full = key_body / 128, recent = kRecent + group;
  const int head_bytes = 128 * kDim / 4 + 128 * (kDim / group) * 4;
  const auto page_bytes = [&](bool with_norms) { return (with_norms ? 512 : 0) + s.kv_heads * head_bytes; };
  const long long count = static_cast<long long>(s.batch) * pages;
  DeviceArray<std::uint8_t> key_pages(static_cast<std::size_t>(count * page_bytes(norms))),
      value_pages(static_cast<std::size_t>(count * page_bytes(false)));
  fill_pages<<<1024, 256>>>(reinterpret_cast<std::uint32_t*>(key_pages.get()), count * page_bytes(norms) / 4,
                            page_bytes(norms) / 4, norms ? 128 : 0, head_bytes / 4, 128 * kDim / 16);
  fill_pages<<<1024, 256>>>(reinterpret_cast<std::uint32_t*>(value_pages.get()), count * page_bytes(false) / 4,
                            page_bytes(false) / 4, 0, head_bytes / 4, 128 * kDim / 16);
  const std::size_t row = static_cast<std::size_t>(s.kv_heads) * kDim,
                    rows = (kSink + static_cast<std::size_t>(recent)) * 2;
  DeviceArray<std::uint16_t> windows(static_cast<std::size_t>(s.batch) * rows * row);
  const std::size_t q_size = static_cast<std::size_t>(s.batch) * static_cast<std::size_t>(s.query_heads) * kDim;
  DeviceArray<float> q(q_size), plain(q_size), coded(q_size);
  fill_rows<<<256, 256>>>(q.get(), static_cast<long long>(q_size), windows.get(),
                          static_cast<long long>(static_cast<std::size_t>(s.batch) * rows * row));
  std::vector<std::int32_t> table(static_cast<std::size_t>(count));
  std::iota(table.begin(), table.end(), 0);
  std::mt19937 random(1);
  std::shuffle(table.begin(), table.end(), random);
  DeviceArray<std::int32_t> d_table(table);
  std::vector<KiviSequence> sequences;
  for (int b = 0; b < s.batch; ++b) {
    const std::uint16_t* base = windows.get() + static_cast<std::size_t>(b) * rows * row;
    const std::int32_t* ids = d_table.get() + static_cast<std::size_t>(b) * static_cast<std::size_t>(pages);
    sequences.push_back({base, base + kSink * row, ids, ids, s.context, key_body, value_body, base + 2 * kSink * row,
                         base + (2 * kSink + static_cast<std::size_t>(recent)) * row, key_body, value_body});
  }
  DeviceArray<KiviSequence> d_sequences(sequences);
  KiviAttentionParams p{};
  p.q = p.q_coded = q.get(), p.plain = plain.get(), p.coded = coded.get(), p.sequences = d_sequences.get();
  p.key = {key_pages.get(), page_bytes(norms), head_bytes, group, norms};
  p.value = {value_pages.get(), page_bytes(false), head_bytes, group, false};
  p.batch = s.batch, p.query_heads = s.query_heads, p.kv_heads = s.kv_heads, p.head_dim = kDim, p.sink = kSink;
  p.max_pages = full, p.max_loose = s.context - 128 * full, p.scale = 0.0883883f;
  DeviceArray<std::uint8_t> workspace(kivi_attention_workspace_bytes(p));
  p.workspace = workspace.get();
  check_cuda(kivi_attention(p, nullptr), "kivi_attention");
  check_cuda(cudaDeviceSynchronize(), "kivi_attention");
  const double us =
      time_graph([&](cudaStream_t stream) { return kivi_attention(p, stream); }, repeat, flush, flush_bytes);
  const double body = value_body / 128.0 * (page_bytes(norms) + page_bytes(false));
  return {us, s.batch * (body + (kSink + kRecent) * 4.0 * static_cast<double>(row))};
}

int main_with(int argc, char** argv) {
  int repeat = 25;
  std::string json;
  std::vector<AttentionShape> shapes;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    AttentionShape s;
    if (a == "--repeat" && i + 1 < argc) {
      repeat = std::atoi(argv[++i]);
    } else if (a == "--json" && i + 1 < argc) {
      json = argv[++i];
    } else if (s.parse(a) && s.head_dim == kDim) {
      shapes.push_back(s);
    } else {
      std::fprintf(stderr, "unknown argument %s\n", a.c_str());
      return 2;
    }
  }
  if (shapes.empty()) shapes = published_shapes();
  cudaDeviceProp device;
  check_cuda(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
  AttentionRows rows(device.name);
  const std::size_t flush_bytes = 256u << 20;
  DeviceArray<std::uint8_t> flush(flush_bytes);
  for (const AttentionShape& s : shapes) {
    for (const auto& [method, group, norms] : {std::tuple<const char*, int, bool>{"oscar-tns", 32, true},
                                               {"oscar-tns-g128", 128, true},
                                               {"kivi2", 32, false}}) {
      rows.add(s, {{"method", method}}, time_shape(s, group, norms, repeat, flush, flush_bytes));
    }
  }
  if (!json.empty()) rows.write(json);
  return 0;
}

}  // namespace
}  // namespace oscar::kernels

int main(int argc, char** argv) { return oscar::kernels::run_program(oscar::kernels::main_with, argc, argv); }
