// Which caches the CUDA kernels of this build can hold.
#include "runtime/paged_backend.h"

namespace oscar {
namespace {

std::string number(std::int64_t n) { return std::to_string(n); }

}  // namespace

std::string cuda_decode_obstacle(const KvMethod& method, const ModelConfig& model) {
  const std::int64_t d = model.head_dim, group = model.group_size();
  const auto built = [](const std::string& what, const std::string& have) {
    return "the decode kernel is built for " + what + ", not for " + have;
  };
  if (d != 64 && d != 128 && d != 256) return built("head sizes 64, 128 and 256", number(d));
  if (group < 1 || group > 16) return built("1 to 16 query heads on a KV head", number(group));
  if (method.engine) return "its pages are built for the CPU alone";
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
