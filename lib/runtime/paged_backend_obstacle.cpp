// Which caches the CUDA kernels of this build can hold.
#include "runtime/paged_backend.h"

namespace oscar {
namespace {

std::string number(std::int64_t n) { return std::to_string(n); }

// Of a method of another paper: keys per channel and values per token, both with 2 bits (described_attention.h).
std::string described_obstacle(const MethodDescription& method, const ModelConfig& model) {
  const SideDescription &key = method.key, &value = method.value;
  if (key.axis != CacheAxis::kChannel || value.axis != CacheAxis::kToken || key.bits != 2 || value.bits != 2) {
    return "its pages are read by the CPU alone (the GPU has those of keys per channel and values per token, 2 bits)";
  }
  const std::int64_t d = model.head_dim;
  if (d != 64 && d != 128) return "the kernel for its pages is built for head sizes 64 and 128, not for " + number(d);
  const bool groups = key.group == value.group || (value.group == 0 && key.group >= d);
  if (!groups || value.token_norm || key.windows.sink != value.windows.sink) {
    return "the kernel for its pages is built for keys and values with equal groups and sinks, norms for keys alone";
  }
  return "";
}

}  // namespace

std::string cuda_decode_obstacle(const KvMethod& method, const ModelConfig& model) {
  const std::int64_t d = model.head_dim, group = model.group_size();
  const auto built = [](const std::string& what, const std::string& have) {
    return "the decode kernel is built for " + what + ", not for " + have;
  };
  if (method.engine) return described_obstacle(method.engine->description(), model);
  if (d != 64 && d != 128 && d != 256) return built("head sizes 64, 128 and 256", number(d));
  if (group < 1 || group > 16) return built("1 to 16 query heads on a KV head", number(group));
  if (!method.quantised) return "";
  if (method.key_encoder == Encoder::kFeedback || method.value_encoder == Encoder::kFeedback) {
    return "rows are encoded on the GPU by 'minmax' or 'search', not by 'feedback' (fit with --encoder search)";
  }
  if (method.phases) {
    return "it has no logits that depend on the position, which --center rope needs (fit with --center mean)";
  }
  const WindowPolicy& w = method.windows;
  if (w.flush < 1 || w.flush > kPageTokens || (w.flush & (w.flush - 1)) != 0) {
    return built("flushes of a power of two up to 64 tokens", number(w.flush));
  }
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    for (const Side side : {Side::kKey, Side::kValue}) {
      const RowCode& code = method.code(layer, side);
      if (code.layout != method.code(layer, Side::kKey).layout) return built("keys and values of one layout", "two");
      if (code.layout == Layout::kBlocks) continue;
      if (code.group != d) return built("one scale for a head's row", "groups of " + number(code.group) + " channels");
      if (code.params != ParamType::kFloat16) return built("scales in FP16", "BF16");
    }
  }
  return "";
}

}  // namespace oscar
