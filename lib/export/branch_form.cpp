// The parts of a bundle that rotation files carry, and the engine's defaults for the rest.
#include <algorithm>

#include "base/formatted.h"
#include "export/writers.h"

namespace oscar {
namespace {

constexpr const char* kEngineEncoder = "minmax";  // in every engine that loads the published files

// Why a published format cannot carry a layer, with the nearest solution.
std::optional<std::string> layer_unsupported(const LayerTransform& layer, const LayerTransform& first,
                                             const ExportFormat& format) {
  const std::string name = "layer " + std::to_string(layer.layer) + " of the bundle has ";
  const std::string cannot = ", which format " + format.id + " cannot carry";
  if (layer.key.blocks() || layer.value.blocks()) {
    return name +
           "block widths, which the OSCAR branch of SGLang cannot read; format sglang serves them in SGLang's release. "
           "Or fit with --for " +
           format.id;
  }
  if (layer.key.rotated_mean) {
    return name + "the mean of keys before RoPE taken away" + cannot + ": fit again with --center key";
  }
  const bool general = !layer.key.orthogonal() || !layer.value.orthogonal() || layer.key.mean.defined();
  if (!format.general && (general || layer.value.mean.defined())) {
    return name + "a mean or a transform that is not orthogonal" + cannot +
           "; export it as sglang-branch-v3, or fit with --method oscar";
  }
  if (layer.value.mean.defined()) return name + "a value mean" + cannot + "; fit with --center key";
  if (layer.key.orthogonal() != first.key.orthogonal() || layer.value.orthogonal() != first.value.orthogonal() ||
      layer.key.mean.defined() != first.key.mean.defined()) {
    return name + "another kind of transform than the first layer" + cannot + "; fit all layers with one method";
  }
  if ((layer.head_dim & (layer.head_dim - 1)) != 0) {
    return name + "head_dim " + std::to_string(layer.head_dim) + "; engines that load " + format.id +
           " need a power of two";
  }
  return std::nullopt;
}

// Ratios of at least 1 or at most 0 mean off.
bool same_clip(float a, float b) {
  const auto off = [](float rho) { return rho <= 0.0f || rho >= 1.0f; };
  return a == b || (off(a) && off(b));
}

std::string ratio_text(float rho) {
  if (rho <= 0.0f || rho >= 1.0f) return "off";
  return formatted("%.3g", static_cast<double>(rho));
}

// "0.434 to 0.84", "off", "off to 0.9": the ratios of one side over all layers.
std::string clip_range(const Bundle& bundle, bool key) {
  float low = 2.0f, high = 0.0f;
  bool off = false;
  for (const LayerTransform& layer : bundle.layers) {
    for (const float rho : (key ? layer.key : layer.value).clip) {
      if (rho <= 0.0f || rho >= 1.0f) {
        off = true;
        continue;
      }
      low = std::min(low, rho), high = std::max(high, rho);
    }
  }
  if (high <= 0.0f) return "off";
  if (off) return "off to " + ratio_text(high);
  return low == high ? ratio_text(low) : ratio_text(low) + " to " + ratio_text(high);
}

// Sets one ratio in all layers and heads of a side, and reports the previous ones.
void use_one_clip(const Bundle& fitted, bool key, Bundle& served, std::vector<std::string>& changes) {
  const float rho = key ? fitted.global_key_clip : fitted.global_value_clip;
  bool same = true;
  for (LayerTransform& layer : served.layers) {
    SideTransform& side = key ? layer.key : layer.value;
    for (const float own : side.clip) same = same && same_clip(own, rho);
    side.clip = {rho};
  }
  if (same) return;
  changes.push_back(std::string("one clip ratio for the ") + (key ? "keys" : "values") + " of all layers, " +
                    ratio_text(rho) + ", in place of the bundle's " + clip_range(fitted, key));
}

}  // namespace

bool per_head(const Bundle& bundle) {
  return std::any_of(bundle.layers.begin(), bundle.layers.end(), [](const LayerTransform& layer) {
    return layer.key.forward.size(0) > 1 || layer.value.forward.size(0) > 1;
  });
}

std::optional<std::string> branch_unsupported(const ExportFormat& format, const Bundle& bundle) {
  for (const LayerTransform& layer : bundle.layers) {
    if (auto found = layer_unsupported(layer, bundle.layers.front(), format)) return found;
  }
  if (format.version == 1 && per_head(bundle)) {
    return "the bundle has one rotation for each KV head, which format sglang-branch cannot carry; export it as "
           "sglang-branch-v2, or fit with --scope layer";
  }
  for (const std::int64_t window : {bundle.windows.sink, bundle.windows.recent}) {
    if (window % format.window_step != 0) {
      return "the bundle has a BF16 window of " + std::to_string(window) + " tokens; engines that load " + format.id +
             " need multiples of " + std::to_string(format.window_step);
    }
  }
  return std::nullopt;
}

ServedForm branch_form(const ExportFormat& format, const Bundle& bundle) {
  ServedForm form{format.id, bundle, {}};
  use_one_clip(bundle, true, form.bundle, form.changes);
  use_one_clip(bundle, false, form.bundle, form.changes);
  if (bundle.encoder != kEngineEncoder) {
    form.changes.push_back("codes of encoder " + std::string(kEngineEncoder) + " in place of " + bundle.encoder);
    form.bundle.encoder = kEngineEncoder;
  }
  return form;
}

}  // namespace oscar
