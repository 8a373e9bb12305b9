#include "collect/collect_estimate.h"

#include <ATen/ATen.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "base/errors.h"
#include "collect/accumulator.h"
#include "collect/spool.h"
#include "model/device.h"
#include "model/layer.h"
#include "model/weights.h"

namespace oscar {
namespace {

std::uint64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::uint64_t total = 0, resident = 0;
  statm >> total >> resident;
  return resident * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

// Bytes of the weights of all layers, and of the largest layer, in the compute dtype of `width` bytes per number.
// Embedding and head stay in the file.
struct LayerBytes {
  std::uint64_t all = 0, largest = 0;

  LayerBytes(const Checkpoint& checkpoint, std::uint64_t width) {
    for (const std::uint64_t elements : layer_elements(checkpoint)) {
      all += width * elements;
      largest = std::max(largest, width * elements);
    }
  }
};

// The largest tensors alive at once while one step passes through a layer, as lib/model and the observer hold them.
std::uint64_t step_bytes(const ModelConfig& c, std::int64_t tokens, std::uint64_t width, at::Device device) {
  const auto t = static_cast<std::uint64_t>(tokens);
  const auto hidden = static_cast<std::uint64_t>(c.hidden), d = static_cast<std::uint64_t>(c.head_dim);
  const auto hq = static_cast<std::uint64_t>(c.query_heads), hkv = static_cast<std::uint64_t>(c.kv_heads);
  const std::uint64_t attention = t * d * width * (4 * hq + 2 * hq + 4 * hkv);  // q, o, their copies; K, V by group
  const auto block = static_cast<std::uint64_t>(std::min(tokens, mlp_tokens(device)));
  const std::uint64_t mlp =
      block * static_cast<std::uint64_t>(std::max(c.intermediate, c.shared.intermediate)) * width * 2;
  // Rows sorted by expert, as computed and in the order of tokens; gates, their factor, and the product.
  const std::uint64_t chosen = block * static_cast<std::uint64_t>(c.experts.per_token) * width;
  const std::uint64_t experts = chosen * (3 * hidden + 4 * static_cast<std::uint64_t>(c.experts.intermediate));
  const std::uint64_t carried = 2 * t * width * (static_cast<std::uint64_t>(c.state_width()) - hidden);
  return t * hidden * (4 * width + 4) + carried + std::max(attention, mlp + experts);
}

std::int64_t longest_step(const TokenPlan& plan) {
  std::int64_t longest = 0;
  for (const Step& step : plan.steps) longest = std::max(longest, step.tokens);
  return longest;
}

// Hidden states between the layers: two buffers used in turn.
std::uint64_t state_bytes(const ModelConfig& c, const TokenPlan& plan, const CollectOptions& options) {
  const auto values = static_cast<std::uint64_t>(plan.tokens) * static_cast<std::uint64_t>(c.state_width());
  return values * 2 * c10::elementSize(options.dtype);
}

// Bytes that a run with steps of at most `step` tokens needs on a GPU.
std::uint64_t gpu_bytes(const Checkpoint& checkpoint, const TokenPlan& plan, const CollectOptions& options,
                        std::int64_t step) {
  const ModelConfig& c = checkpoint.config();
  const std::uint64_t width = c10::elementSize(options.dtype), tokens = static_cast<std::uint64_t>(plan.tokens);
  const LayerBytes layers(checkpoint, width);
  // One layer in use, one being loaded, one whose memory is not free yet.
  const std::uint64_t weights = std::min(3 * layers.largest, layers.all);
  const auto mirrored = [](std::uint64_t bytes) { return bytes <= kMostMirrorBytes ? bytes : 0; };
  const auto hidden = tokens * width * static_cast<std::uint64_t>(c.state_width());
  const auto cached = tokens * width * 2 * static_cast<std::uint64_t>(c.kv_heads * c.head_dim);
  // FP32 copies of the moments' rows with RoPE applied and before RoPE, and partial products; scores of the pairs
  // outside the windows, and results computed from them.
  const std::uint64_t chunk = std::uint64_t{4} * static_cast<std::uint64_t>(kGpuChunkRows * c.kv_heads * c.head_dim);
  const std::uint64_t far = options.far.enabled ? std::uint64_t{6} * 4 * kFarScores : 0;
  constexpr std::uint64_t kLibraries = std::uint64_t{512} << 20;  // workspaces of cuBLAS, rounding of the allocator
  const std::uint64_t forward =
      step_bytes(c, step, width, options.device) + 2 * mirrored(hidden) + mirrored(cached) + 6 * chunk + far;
  // The next layer is dequantized while the current one computes.
  return weights + forward + dequantization_bytes(checkpoint, options.device) + kLibraries;
}

}  // namespace

CollectEstimate estimate_bytes(const Checkpoint& checkpoint, const TokenPlan& plan, const CollectOptions& options) {
  const ModelConfig& c = checkpoint.config();
  const std::uint64_t width = c10::elementSize(options.dtype);
  const auto tokens = static_cast<std::uint64_t>(plan.tokens);
  const auto d = static_cast<std::uint64_t>(c.head_dim), hkv = static_cast<std::uint64_t>(c.kv_heads);
  const auto rows = static_cast<std::uint64_t>(std::min(options.rows, plan.tokens));

  CollectEstimate e;
  e.from_index = !checkpoint.has_shards();
  if (e.from_index) check_weight_names(checkpoint);
  const LayerBytes weights(checkpoint, width);
  e.weight_bytes = weights.largest;
  e.stored_bytes = checkpoint.weight_bytes();

  const std::uint64_t gram = hkv * d * d * 8;
  // Eight moments per layer, and three metrics of pairs outside the windows if there are such pairs.
  const bool far = options.far.enabled && plan.longest > options.far.sink + options.far.recent;
  const std::uint64_t grams = far ? 11 : 8;
  const std::uint64_t layer_bytes =
      grams * gram + 3 * hkv * d * 8 + rows * (static_cast<std::uint64_t>(c.query_heads) + 2 * hkv) * d * 4;
  e.output_bytes = static_cast<std::uint64_t>(c.kv_layers()) * layer_bytes + rows * 16 + d * 4;
  e.disk_bytes = state_bytes(c, plan, options) + tokens * width * 2 * hkv * d + 2 * e.output_bytes;

  const std::uint64_t ids = static_cast<std::uint64_t>(plan.available) * 4;
  const std::uint64_t working = step_bytes(c, longest_step(plan), width, at::kCPU);
  const std::uint64_t loading = dequantization_bytes(checkpoint, options.device);
  const std::uint64_t unsaved = options.device.is_cuda() ? e.output_bytes : 0;  // layers that are in no file yet
  const std::uint64_t running = e.weight_bytes + std::max(working + 2 * layer_bytes, loading) + unsaved;
  e.peak_bytes = resident_bytes() + ids + std::max(running, e.output_bytes);
  if (options.device.is_cuda()) e.device_bytes = gpu_bytes(checkpoint, plan, options, longest_step(plan));
  return e;
}

std::string gpu_memory_advice(const Checkpoint& checkpoint, const TokenPlan& plan, const CollectOptions& options,
                              std::uint64_t free) {
  const std::int64_t longest = longest_step(plan);
  const auto fits = [&](std::int64_t step) { return gpu_bytes(checkpoint, plan, options, step) <= free; };
  for (std::int64_t step = longest / 2; step >= 64; step /= 2) {
    if (fits(step)) return "--seq-len " + std::to_string(step) + " would fit";
  }
  return "no smaller --seq-len would fit: use a GPU with more memory, or --device cpu";
}

void require_gpu_memory(const Checkpoint& checkpoint, const TokenPlan& plan, const CollectOptions& options,
                        const CollectEstimate& estimate) {
  if (!options.device.is_cuda()) return;
  require_device_memory(options.device, estimate.device_bytes,
                        gpu_memory_advice(checkpoint, plan, options, free_device_bytes(options.device)));
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
