// Tokens per second of a whole decode step, INT2 cache against BF16 cache, geometry of Qwen3-8B and Qwen3-4B with
// random weights made on the GPU.
//   bench_decode_step [--geometry 8b,4b] [--contexts 8192,...] [--reserve GIB] [--steps N] [--json FILE] [--parts]
//                     [--largest] [--rates TB_PER_S,TFLOP_PER_S]
//   bench_decode_step --check    the step against lib/model, on a small geometry
// Each step is one CUDA graph: greedy token -> embedding -> all layers -> head -> greedy token. The position stays at
// the context's end, so every replay does the same work. Batch 1, then the largest batches that fit the memory which
// weights and --reserve (default 4 GiB, for activations) leave. The BF16 step runs with SDPA's flash and cuDNN kernels;
// ratios are to the faster. "by bytes": the ratio of (weights + cache) that the steps must read.
// --parts: what each part of the 2-bit step takes, in a graph of its own, and what it must take at --rates (default:
// what an H200 was measured to do): the longer of its bytes and its matrix products. --largest: the largest batches
// alone.
#include <c10/cuda/CUDACachingAllocator.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "base/json.h"
#include "model/layer.h"
#include "model/rope.h"
#include "tests/bench/decode_step/step_timing.h"

namespace oscar::bench {
namespace {

const CacheWindows kWindows{64, 256, 1};

struct Options {
  std::vector<std::string> geometries{"8b", "4b"};
  std::vector<std::int64_t> single{8192, 32768, 102400, 131072}, batched{8192, 32768, 102400};
  double reserve_gib = 4.0;
  int steps = 20;
  std::string json;
  bool check = false, parts = false, largest = false;
  Rates rates;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, ',');) parts.push_back(part);
  return parts;
}

// Flash and cuDNN, or INT2. Milliseconds by name; the cache is made and dropped here. parts: filled when asked for.
Json measure(StepWeights& weights, bool int2, std::int64_t batch, std::int64_t context, const Options& o, Json& parts) {
  use_absorbed(weights, int2);
  Json times = Json::object();
  if (batch < 1) return times;
  {
    DecodeStep step(weights, int2 ? CacheKind::kInt2 : CacheKind::kBf16Flash, batch, context, kWindows);
    step.fill_random();
    if (int2) {
      times["int2"] = time_step(step, o.steps).value();
      const StepShape shape{true, batch, context, kWindows};
      if (o.parts) parts = time_parts(step, weights.config, shape, o.rates, o.steps);
    } else {
      for (const CacheKind kind : {CacheKind::kBf16Flash, CacheKind::kBf16Cudnn}) {
        step.set_attention(kind);
        if (const auto ms = time_step(step, o.steps)) times[to_string(kind)] = *ms;
      }
    }
  }
  c10::cuda::CUDACachingAllocator::emptyCache();
  return times;
}

double best_of(const Json& times) {
  double best = 1e30;
  for (const auto& [name, ms] : times.items()) best = std::min(best, ms.get<double>());
  return best;
}

Json row_of(StepWeights& weights, const std::string& geometry, const std::string& mode, std::int64_t bf16_batch,
            std::int64_t int2_batch, std::int64_t context, const Options& o) {
  const ModelConfig& c = weights.config;
  Json parts;
  const Json bf16 = measure(weights, false, bf16_batch, context, o, parts);
  const Json int2 = measure(weights, true, int2_batch, context, o, parts);
  Json row{{"geometry", geometry}, {"mode", mode}, {"context", context}};
  const double w = static_cast<double>(weights.step_bytes());
  const auto side = [&](bool is_int2, std::int64_t batch, const Json& times) {
    const double bytes =
        w + static_cast<double>(batch) * static_cast<double>(read_bytes(c, is_int2, kWindows, context));
    Json s{{"batch", batch}, {"ms", times}, {"bytes_per_step", bytes}};
    if (batch > 0) {
      const double ms = best_of(times), least = least_ms_of_step(c, {is_int2, batch, context, kWindows}, o.rates);
      s["least_ms"] = least;
      s["of_roofline"] = least / ms;
      s["tokens_per_second"] = 1e3 * static_cast<double>(batch) / ms;
      s["terabytes_per_second"] = bytes / ms / 1e9;
      s["cache_bytes"] = static_cast<double>(batch) * static_cast<double>(cache_bytes(c, is_int2, kWindows, context));
    }
    return s;
  };
  row["bf16"] = side(false, bf16_batch, bf16);
  row["int2"] = side(true, int2_batch, int2);
  if (bf16_batch > 0 && int2_batch > 0) {
    row["ratio"] = row["int2"]["tokens_per_second"].get<double>() / row["bf16"]["tokens_per_second"].get<double>();
    row["ratio_by_bytes"] = (row["bf16"]["bytes_per_step"].get<double>() / static_cast<double>(bf16_batch)) /
                            (row["int2"]["bytes_per_step"].get<double>() / static_cast<double>(int2_batch));
    std::printf(
        "%s %-8s context %6lld  bf16 batch %3lld: %8.1f tok/s  int2 batch %3lld: %8.1f tok/s (%.2f TB/s, %.1f %% of "
        "the roofline)  %.2fx, by bytes %.2fx\n",
        geometry.c_str(), mode.c_str(), static_cast<long long>(context), static_cast<long long>(bf16_batch),
        row["bf16"]["tokens_per_second"].get<double>(), static_cast<long long>(int2_batch),
        row["int2"]["tokens_per_second"].get<double>(), row["int2"]["terabytes_per_second"].get<double>(),
        100 * row["int2"]["of_roofline"].get<double>(), row["ratio"].get<double>(),
        row["ratio_by_bytes"].get<double>());
    std::fflush(stdout);
    if (!parts.is_null()) {
      const Json& s = row["int2"];
      print_parts(
          parts,
          geometry + ", 2-bit cache, context " + std::to_string(context) + ", batch " + std::to_string(int2_batch),
          best_of(int2), s["least_ms"].get<double>());
      row["int2"].update(parts);
    }
  }
  return row;
}

int run(const Options& o) {
  cudaDeviceProp device;
  if (cudaGetDeviceProperties(&device, 0) != cudaSuccess) throw std::runtime_error("no GPU");
  Json rows = Json::array();
  for (const std::string& geometry : o.geometries) {
    const ModelConfig config = qwen3_geometry(geometry);
    StepWeights weights = random_weights(config, 131072 + 1, 1);
    c10::cuda::CUDACachingAllocator::emptyCache();
    if (!o.largest) {
      for (const std::int64_t context : o.single)
        rows.push_back(row_of(weights, geometry, "batch 1", 1, 1, context, o));
    }
    std::size_t free = 0, total = 0;
    cudaMemGetInfo(&free, &total);
    const double room = static_cast<double>(free) - o.reserve_gib * 1073741824.0;
    for (const std::int64_t context : o.batched) {
      const auto fits = [&](bool int2) {
        return static_cast<std::int64_t>(room / static_cast<double>(cache_bytes(config, int2, kWindows, context)));
      };
      Json row = row_of(weights, geometry, "capacity", fits(false), fits(true), context, o);
      row["cache_memory_bytes"] = room;
      rows.push_back(std::move(row));
    }
  }
  if (!o.json.empty()) {
    std::ofstream(o.json) << dump_json(
        Json{{"gpu", device.name},
             {"windows", {kWindows.sink, kWindows.recent}},
             {"rates", {{"bytes_per_second", o.rates.bytes}, {"operations_per_second", o.rates.operations}}},
             {"results", rows}});
  }
  return 0;
}

// The step, token after token, against the layers of lib/model on the whole sequence. Up to the end of the windows the
// INT2 cache holds BF16 rows alone, so both must agree to the rounding of BF16 activations.
int check() {
  const std::int64_t tokens = 420, plain_until = kWindows.sink + kWindows.recent;
  StepWeights weights = random_weights(qwen3_geometry("tiny"), 1024, 5);
  const ModelConfig& c = weights.config;
  const at::Device gpu{at::kCUDA, 0};
  const at::Tensor ids = at::randint(c.vocabulary, {tokens}, at::kLong).to(gpu);
  const SequenceBatch batch{{0}, {tokens}, {0}};
  const RopeTable table = rope_table(rope_frequencies(c.rope, c.head_dim, c.max_position), batch, at::kBFloat16, gpu);
  FullAttention attention;
  use_absorbed(weights, false);
  at::Tensor expected = weights.embedding.index_select(0, ids);
  for (std::int64_t i = 0; i < c.layers; ++i) {
    expected =
        decoder_layer(c, i, weights.layers[static_cast<std::size_t>(i)].plain, expected, batch, table, attention);
  }
  bool good = true;
  for (const std::int64_t copies : {1, 3}) {
    for (const CacheKind kind : {CacheKind::kBf16Flash, CacheKind::kInt2}) {
      use_absorbed(weights, kind == CacheKind::kInt2);
      DecodeStep step(weights, kind, copies, tokens, kWindows);
      std::vector<at::Tensor> rows;
      const at::Tensor host = ids.to(at::kCPU, at::kInt);
      for (std::int64_t t = 0; t < tokens; ++t) {
        step.force_tokens(std::vector<std::int32_t>(static_cast<std::size_t>(copies), host[t].item<std::int32_t>()));
        step.set_length(t + 1);
        step.run();
        rows.push_back(step.hidden().narrow(0, copies - 1, 1).clone());
      }
      const auto error = [&](std::int64_t begin, std::int64_t end) {
        const at::Tensor found = at::cat(rows).narrow(0, begin, end - begin).to(at::kFloat);
        const at::Tensor reference = expected.narrow(0, begin, end - begin).to(at::kFloat);
        return ((found - reference).norm() / reference.norm()).item<double>();
      };
      const double plain = error(0, plain_until), rest = error(plain_until, tokens);
      const double limit = kind == CacheKind::kInt2 ? 0.5 : 0.02;
      std::printf(
          "check %-18s batch %lld: relative error %.4f in the windows (at most 0.02), %.4f beyond (at most %.2f)\n",
          to_string(kind).c_str(), static_cast<long long>(copies), plain, rest, limit);
      good = good && plain < 0.02 && rest < limit;
    }
  }
  return good ? 0 : 1;
}

int main_with(int argc, char** argv) {
  Options o;
  for (int i = 1; i < argc; ++i) {
    const std::string a = argv[i];
    const auto value = [&] {
      if (i + 1 >= argc) throw std::invalid_argument(a + " needs a value");
      return std::string(argv[++i]);
    };
    if (a == "--check") {
      o.check = true;
    } else if (a == "--parts") {
      o.parts = true;
    } else if (a == "--largest") {
      o.largest = true;
    } else if (a == "--rates") {
      const std::vector<std::string> rates = split(value());
      if (rates.size() != 2) throw std::invalid_argument("--rates takes two numbers");
      o.rates = {1e12 * std::stod(rates[0]), 1e12 * std::stod(rates[1])};
    } else if (a == "--geometry") {
      o.geometries = split(value());
    } else if (a == "--contexts") {
      o.single.clear();
      for (const std::string& n : split(value())) o.single.push_back(std::stoll(n));
      o.batched = o.single;
    } else if (a == "--reserve") {
      o.reserve_gib = std::stod(value());
    } else if (a == "--steps") {
      o.steps = std::stoi(value());
    } else if (a == "--json") {
      o.json = value();
    } else {
      throw std::invalid_argument("unknown argument " + a);
    }
  }
  const c10::InferenceMode no_gradients;
  return o.check ? check() : run(o);
}

}  // namespace
}  // namespace oscar::bench

int main(int argc, char** argv) {
  try {
    return oscar::bench::main_with(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 4;
  }
}
