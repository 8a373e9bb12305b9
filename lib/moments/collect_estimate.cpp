#include "moments/collect_estimate.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <map>

#include "base/errors.h"
#include "model/decoder.h"
#include "moments/accumulator.h"

namespace oscar {
namespace {

constexpr std::int64_t kSampleTokens = 512;
constexpr std::int64_t kMlpBlock = 4096;  // tokens the MLP takes at once (lib/model/layer.cpp)

std::uint64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

// Elements of the weights of each layer, from the names "...layers.<i>....". Embedding and head stay in the file.
std::map<std::int64_t, std::uint64_t> weight_elements(const Checkpoint& checkpoint) {
  std::map<std::int64_t, std::uint64_t> elements;
  for (const std::string& name : checkpoint.names()) {
    const std::size_t at = name.find("layers.");
    if (at == std::string::npos) continue;
    const std::int64_t layer = std::strtoll(name.c_str() + at + 7, nullptr, 10);
    elements[layer] += static_cast<std::uint64_t>(checkpoint.at(name).elements());
  }
  return elements;
}

// The largest tensors alive at once while one step passes through a layer, as lib/model and the observer keep them.
std::uint64_t step_bytes(const ModelConfig& c, std::int64_t tokens, std::uint64_t width) {
  const auto t = static_cast<std::uint64_t>(tokens);
  const auto hidden = static_cast<std::uint64_t>(c.hidden), d = static_cast<std::uint64_t>(c.head_dim);
  const auto hq = static_cast<std::uint64_t>(c.query_heads), hkv = static_cast<std::uint64_t>(c.kv_heads);
  const std::uint64_t attention = t * d * width * (4 * hq + 2 * hq + 4 * hkv);  // q, o, their copies; K, V by group
  const auto block = static_cast<std::uint64_t>(std::min(tokens, kMlpBlock));
  const std::uint64_t mlp = block * static_cast<std::uint64_t>(c.intermediate) * width * 2;
  return t * hidden * (4 * width + 4) + std::max(attention, mlp);
}

}  // namespace

CollectEstimate estimate_bytes(const Checkpoint& checkpoint, const TokenPlan& plan, const CollectOptions& options) {
  const ModelConfig& c = checkpoint.config();
  const std::uint64_t width = c10::elementSize(options.dtype);
  const auto layers = static_cast<std::uint64_t>(c.layers), tokens = static_cast<std::uint64_t>(plan.tokens);
  const auto d = static_cast<std::uint64_t>(c.head_dim), hkv = static_cast<std::uint64_t>(c.kv_heads);
  const auto rows = static_cast<std::uint64_t>(std::min(options.rows, plan.tokens));

  CollectEstimate e;
  std::uint64_t largest = 0, all = 0;
  for (const auto& [layer, elements] : weight_elements(checkpoint)) {
    all += elements;
    largest = std::max(largest, elements);
  }
  e.weight_bytes = width * (options.stream_layers ? largest : all);

  const std::uint64_t gram = hkv * d * d * 8;
  const std::uint64_t layer_bytes =
      6 * gram + 2 * hkv * d * 8 + rows * (static_cast<std::uint64_t>(c.query_heads) + 2 * hkv) * d * 4;
  e.output_bytes = layers * layer_bytes + rows * 16;
  e.disk_bytes = tokens * width * (2 * static_cast<std::uint64_t>(c.hidden) + 2 * hkv * d) + 2 * e.output_bytes;

  std::int64_t longest_step = 0;
  for (const Step& step : plan.steps) longest_step = std::max(longest_step, step.tokens);
  const std::uint64_t ids = static_cast<std::uint64_t>(plan.available) * 4;
  const std::uint64_t running = e.weight_bytes + step_bytes(c, longest_step, width) + 2 * layer_bytes;
  e.peak_bytes = resident_bytes() + ids + std::max(running, e.output_bytes);
  return e;
}

void measure_time(const Checkpoint& checkpoint, const PromptSet& prompts, const TokenPlan& plan,
                  const CollectOptions& options, CollectEstimate& estimate) {
  const c10::InferenceMode no_gradients;
  const ModelConfig& c = checkpoint.config();
  Decoder decoder(checkpoint, {options.dtype, options.device, true});
  std::vector<std::int32_t> ids = step_ids(prompts, plan, plan.steps[0]);
  if (static_cast<std::int64_t>(ids.size()) > kSampleTokens) ids.resize(kSampleTokens);
  estimate.sample_tokens = static_cast<std::int64_t>(ids.size());
  const SequenceBatch batch{{0}, {estimate.sample_tokens}, {0}};

  // The observer's sums, without the files.
  struct Sums : AttentionObserver {
    Sums(Attention& inner, const ModelConfig& c, at::Device device)
        : AttentionObserver(inner), moments(c.kv_heads, c.head_dim, device) {}
    void observe(const AttentionInput& input, const at::Tensor& output) override {
      moments.add(input.q, input.k, input.v, output);
    }
    MomentAccumulator moments;
  };
  FullAttention attention;
  Sums sums(attention, c, options.device);
  const at::Tensor hidden = decoder.embed(ids);
  double best = 0;
  for (int repeat = 0; repeat < 2; ++repeat) {  // the first loads the layer and warms up
    const auto start = std::chrono::steady_clock::now();
    decoder.run_layer(0, hidden, batch, sums).sum().item<float>();  // item: waits for a GPU
    best = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  estimate.seconds = best / static_cast<double>(estimate.sample_tokens) * static_cast<double>(plan.tokens) *
                     static_cast<double>(c.layers);
}

void require_disk_space(const CollectOptions& options, const CollectEstimate& estimate) {
  fs::path folder = work_directory_of(options);
  while (!folder.empty() && !fs::exists(folder)) folder = folder.parent_path();
  if (folder.empty()) folder = ".";
  std::error_code ec;
  const fs::space_info space = fs::space(folder, ec);
  if (!ec && space.available < estimate.disk_bytes) {
    throw EnvironmentError(folder.string() + ": has " + format_bytes(space.available) + " free, the run needs about " +
                           format_bytes(estimate.disk_bytes) + "; free some space or choose another --work-dir");
  }
}

}  // namespace oscar
