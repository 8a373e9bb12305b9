// Checks that a bundle is sound, beyond its structure.
#include <ATen/ATen.h>

#include <set>

#include "base/errors.h"
#include "base/formatted.h"
#include "bundle/bundle.h"
#include "layout/left_out.h"
#include "registry/registry.h"
#include "transform/compose.h"

namespace oscar {
namespace {

constexpr double kOrthogonalityLimit = 1e-4;  // FP32 storage leaves about 1e-7

bool finite(const at::Tensor& tensor) { return !tensor.defined() || at::isfinite(tensor).all().item<bool>(); }

// max |A^T B - I| (keys) or |B A - I| (values): the pair must preserve q k^T, or v. Products are computed in the cache
// basis: model channels of very different size do not magnify the rounding of FP32 storage there.
double cancellation_error(const SideTransform& side, bool key) {
  const at::Tensor a = side.forward.to(at::kDouble);
  const at::Tensor b = (key ? side.query_side : side.inverse).to(at::kDouble);
  const at::Tensor product = key ? at::matmul(a.transpose(-2, -1), b) : at::matmul(b, a);
  return (product - at::eye(a.size(-1), at::kDouble)).abs().max().item<double>();
}

void check_blocks(const SideTransform& side, const std::string& name, std::int64_t d, std::int64_t heads,
                  std::vector<std::string>& faults) {
  if (side.widths.size() != kBands) {
    faults.push_back(name + " has " + std::to_string(side.widths.size()) + " block widths, expected " +
                     std::to_string(kBands));
    return;
  }
  try {
    side.code(d, 0);
  } catch (const InputError& e) {
    faults.push_back(name + ": " + e.what());
  }
  if (!side.sigma.defined() || side.sigma.sizes() != at::IntArrayRef({heads, kBands})) {
    faults.push_back(name + " block deviations have a wrong shape");
  } else if (!finite(side.sigma) || !(side.sigma.min().item<float>() > 0.0f)) {
    faults.push_back(name + " block deviations are not all positive numbers");
  }
}

void check_side(const LayerTransform& layer, bool key, std::vector<std::string>& faults) {
  const SideTransform& side = key ? layer.key : layer.value;
  const std::string name = "layer " + std::to_string(layer.layer) + (key ? " key" : " value");
  const std::int64_t d = layer.head_dim, heads = layer.kv_heads;
  const auto has_shape = [](const at::Tensor& t, at::IntArrayRef shape) { return t.defined() && t.sizes() == shape; };

  const std::int64_t stored = side.forward.defined() && side.forward.dim() == 3 ? side.forward.size(0) : 0;
  if ((stored != 1 && stored != heads) || !has_shape(side.forward, {stored, d, d})) {
    faults.push_back(name + " rotation is not [1 or " + std::to_string(heads) + ", " + std::to_string(d) + ", " +
                     std::to_string(d) + "]");
    return;
  }
  if ((key ? side.inverse : side.query_side).defined()) {
    faults.push_back(name + (key ? " has an inverse, which is for values" : " has a query side, which is for keys"));
    return;
  }
  const at::Tensor& back = key ? side.query_side : side.inverse;
  if (back.defined() && back.sizes() != side.forward.sizes()) {
    faults.push_back(name + " inverse has another shape than its rotation");
    return;
  }
  if (side.rotated_mean && (!key || !side.mean.defined() || d % 2 != 0)) {
    faults.push_back(name + " has a rotated mean, which is for centered keys of an even head_dim");
  }
  if (side.mean.defined() && !has_shape(side.mean, {heads, d})) faults.push_back(name + " mean has a wrong shape");
  if (side.eigenvalues.defined() && !has_shape(side.eigenvalues, {stored, d})) {
    faults.push_back(name + " eigenvalues have a wrong shape");
  }
  if (side.blocks()) check_blocks(side, name, d, heads, faults);
  if (side.clip.size() != 1 && side.clip.size() != static_cast<std::size_t>(heads)) {
    faults.push_back(name + " has " + std::to_string(side.clip.size()) + " clip ratios, expected 1 or " +
                     std::to_string(heads));
  }
  for (const float rho : side.clip) {
    if (!(rho >= 0.0f && rho <= 1.0f)) {
      faults.push_back(name + " clip ratio is " + formatted("%.3g", rho) + ", expected 0 to 1");
      break;
    }
  }
  if (!finite(side.forward) || !finite(back) || !finite(side.mean) || !finite(side.eigenvalues)) {
    faults.push_back(name + " rotation holds NaN or infinity");
    return;
  }
  if (side.orthogonal()) {
    const double error = orthogonality_error(side.forward);
    if (!(error <= kOrthogonalityLimit)) {
      faults.push_back(name + " rotation is not orthogonal (max |M M^T - I| = " + formatted("%.3g", error) +
                       ", limit " + formatted("%.3g", kOrthogonalityLimit) + ")");
    }
  } else {
    const double error = cancellation_error(side, key);
    if (!(error <= kOrthogonalityLimit)) {
      faults.push_back(name + " transform and its inverse do not cancel (error " + formatted("%.3g", error) +
                       ", limit " + formatted("%.3g", kOrthogonalityLimit) + ")");
    }
  }
}

// A layer with a KV cache may be missing if the bundle says so and its windows hold all tokens that a query of the
// layer sees. Published files do not say it; then the model decides.
void check_missing_layers(const Bundle& bundle, const ModelConfig& model, std::vector<std::string>& faults) {
  std::set<std::int64_t> present, listed;
  for (const LayerTransform& layer : bundle.layers) present.insert(layer.layer);
  for (const LeftOutLayer& other : read_left_out(bundle.model, model.layers, "the bundle")) listed.insert(other.layer);
  for (std::int64_t i = 0; i < model.layers; ++i) {
    if (!model.holds_kv(i) || present.contains(i)) continue;
    const bool held = bundle.windows.hold(model.span(i));
    if (held && (listed.contains(i) || bundle.method == kPublishedMethod)) continue;
    if (!listed.contains(i)) {
      faults.push_back("the bundle has a layer count of " + std::to_string(bundle.layers.size()) + ", the model " +
                       std::to_string(model.kv_layers()) + ": layer " + std::to_string(i) + " is missing");
    } else {
      faults.push_back("the bundle leaves out layer " + std::to_string(i) + ", whose queries see " +
                       (model.span(i) > 0 ? std::to_string(model.span(i)) : std::string("all")) +
                       " tokens: more than a recent window of " + std::to_string(bundle.windows.recent) +
                       " holds in BF16; take longer windows, or fit again with these");
    }
    return;
  }
}

}  // namespace

std::vector<std::string> check_bundle(const Bundle& bundle) {
  std::vector<std::string> faults;
  if (bundle.layers.empty()) faults.push_back("it has no layers");
  std::int64_t previous = -1;
  for (const LayerTransform& layer : bundle.layers) {
    if (layer.layer <= previous) faults.push_back("layer " + std::to_string(layer.layer) + " is out of order");
    previous = layer.layer;
    if (layer.head_dim < 1 || layer.kv_heads < 1) {
      faults.push_back("layer " + std::to_string(layer.layer) + " has no usable geometry");
      continue;
    }
    if (bundle.quant_group > 0 && layer.head_dim % bundle.quant_group != 0) {
      faults.push_back("group " + std::to_string(bundle.quant_group) + " does not divide head_dim " +
                       std::to_string(layer.head_dim) + " of layer " + std::to_string(layer.layer));
    }
    check_side(layer, true, faults);
    check_side(layer, false, faults);
    if (layer.key.refined != layer.value.refined || (layer.key.refined && !bundle.latent())) {
      faults.push_back("layer " + std::to_string(layer.layer) +
                       " has refined codes, which are for rows of latent attention");
    }
  }
  return faults;
}

std::vector<std::string> check_bundle_model(const Bundle& bundle, const ModelConfig& model,
                                            const std::string& fingerprint) {
  std::vector<std::string> faults;
  const auto differ = [&](const std::string& what, std::int64_t ours, std::int64_t theirs) {
    faults.push_back("the bundle has " + what + " " + std::to_string(ours) + ", the model " + std::to_string(theirs));
  };
  for (const LayerTransform& layer : bundle.layers) {
    const std::string of = " of layer " + std::to_string(layer.layer);
    if (layer.layer >= model.layers) {
      faults.push_back("the bundle has layer " + std::to_string(layer.layer) + ", the model only " +
                       std::to_string(model.layers) + " layers");
      break;
    }
    if (!model.holds_kv(layer.layer)) {
      faults.push_back("the bundle has layer " + std::to_string(layer.layer) +
                       ", which holds no KV cache in the model " +
                       (model.is_linear(layer.layer)       ? "(linear attention)"
                        : model.reads_another(layer.layer) ? "(it reads that of another layer)"
                                                           : "(a window in heads of another size)"));
      break;
    }
    if (layer.head_dim != model.head_dim) differ("head_dim" + of, layer.head_dim, model.head_dim);
    // Published files with one shared matrix do not record how many heads use it (kv_heads is 1 there).
    const bool heads_known = layer.kv_heads != 1 || bundle.method != kPublishedMethod;
    if (heads_known && layer.kv_heads != model.kv_heads) differ("KV heads" + of, layer.kv_heads, model.kv_heads);
    if (!faults.empty()) break;
  }
  if (faults.empty() && bundle.latent() != model.is_latent()) {
    faults.push_back(model.is_latent() ? "the bundle is for keys and values apart, and the model has latent attention"
                                       : "the bundle is for latent attention, which the model does not have");
  }
  if (faults.empty() && bundle.rope_dim() != model.latent.rope_dim) {
    differ("rope_dim", bundle.rope_dim(), model.latent.rope_dim);
  }
  if (faults.empty()) check_missing_layers(bundle, model, faults);
  if (!bundle.model_fingerprint.empty() && !serves_checkpoint(bundle, fingerprint)) {
    faults.push_back("the bundle was fitted on another model (fingerprint " + bundle.model_fingerprint + ", found " +
                     fingerprint + "); a quantized twin is added with oscar-verify --add-checkpoint");
  }
  return faults;
}

}  // namespace oscar
