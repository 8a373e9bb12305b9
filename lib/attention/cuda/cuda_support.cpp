// Which caches the CUDA kernels of this build support.
#include <algorithm>

#include "attention/paged_backend.h"
#include "kernels/common/page_layout.h"
#include "kernels/decode/tile_phases.h"
#include "layout/kernel_limits.h"

namespace oscar {
namespace {

std::string number(std::int64_t n) { return std::to_string(n); }

std::string built(const std::string& what, const std::string& have) {
  return "the fast kernel is built for " + what + ", not for " + have;
}

// Layouts that the page-writing kernels support.
std::string code_reason(const KvMethod& method, const ModelConfig& model) {
  const CacheWindows& w = method.windows;
  if (w.flush < 1 || w.flush > kPageTokens || (w.flush & (w.flush - 1)) != 0) {
    return built("flushes of a power of two up to 64 tokens", number(w.flush));
  }
  for (std::int64_t layer = 0; layer < model.kv_layers(); ++layer) {
    const SideTransform* key = method.transform(layer, Side::kKey);
    const bool rotated_mean = key != nullptr && key->rotated_mean;
    if (const auto unread =
            unread_codes(method.code(layer, Side::kKey), method.code(layer, Side::kValue), rotated_mean)) {
      return "the fast kernel does not read " + unread->what;
    }
    if (rotated_mean &&
        !(method.rope_phases->frequencies().inverse.abs().max().item<float>() <= kernels::kMostFrequency)) {
      return built("keys centered before RoPE with frequencies of at most one radian a token", "a larger one");
    }
  }
  return "";
}

// The fast kernel omits means, which a plain softmax does not depend on, but a soft cap or sink logits do.
std::string mean_reason(const KvMethod& method, const ModelConfig& model) {
  for (std::int64_t layer = 0; layer < model.kv_layers(); ++layer) {
    const SideTransform *key = method.transform(layer, Side::kKey), *value = method.transform(layer, Side::kValue);
    if (key != nullptr && key->mean.defined() && !key->rotated_mean &&
        (model.logit_soft_cap > 0.0 || model.sink_logits)) {
      return "the fast kernel cannot add the mean key under a soft cap or sink logits";
    }
    if (value != nullptr && value->mean.defined() && model.sink_logits) {
      return "the fast kernel cannot add the mean value beside sink logits";
    }
  }
  return "";
}

}  // namespace

std::string fast_kernel_fault(const KvMethod& method, const ModelConfig& model) {
  if (model.is_latent()) return "the fast kernel does not read the rows of latent attention";
  const std::int64_t d = model.head_dim, group = model.gqa_group();
  if (std::ranges::count(kEngineHeadSizes, d) == 0) return built("head sizes 64, 128 and 256", number(d));
  if (group < 1 || group > kEngineMostGroup) {
    return built("1 to " + number(kEngineMostGroup) + " query heads on a KV head", number(group));
  }
  const std::string code = method.quantized ? code_reason(method, model) : "";
  return code.empty() ? mean_reason(method, model) : code;
}

}  // namespace oscar
