#include "bundle/calibration_hashes.h"
#include "bundle/manifest.h"
#include "bundle/model_card.h"
#include "checkpoint/model_name.h"
#include "fuzz/card_properties.h"
#include "registry/registry.h"

namespace oscar::fuzz {
namespace {

std::string manifest(const std::string& version, const std::string& code, const std::string& side,
                     bool latent = false) {
  const std::string hex = "0123456789abcdef", sha = hex + hex + hex + hex;
  return R"({"format":"oscar-bundle","format_version":)" + version +
         R"(,"method":"oscar","scope":"layer","model":{"fingerprint":"v2:sha256:)" + sha +
         R"(","name":"org/model","architecture":"Qwen3ForCausalLM","layers":2,)" +
         (latent ? R"("attention":"latent","latent_dim":32,"rope_dim":16,)" : "") + R"("kv_heads":2},"code":)" + code +
         R"(,"windows":{"sink":64,"recent":256},"hadamard_block":32,"global_clip":{"key":0.96,"value":0.92},"layers":[)"
         R"({"layer":0,"head_dim":32,"kv_heads":)" +
         (latent ? "1" : "2") + R"(,"key":)" + side +
         (latent ? "" : R"(,"value":{"heads":1,"orthogonal":true,"centered":false,"clip":[0.92]})") +
         R"(}],"files":{)" + R"("rotations.safetensors":{"sha256":")" + sha +
         R"(","bytes":4096}},"provenance":{"tool":{"name":"oscar-fit",)" +
         R"("version":"0.1.0"},"statistics":{"file":"s.safetensors","sha256":")" + sha +
         R"("},"tokens":9,"options":{"clip":{"mode":"search"}},"collection":{"parts":[{"prompts":{"sha256":")" + sha +
         R"(","files":["a.jsonl","b.txt"],"documents":[")" + hex + R"("],"passages":[")" + hex +
         R"("]},"tokens":9,"sequences":1}]}},"fit":{"warnings":[]}})";
}

}  // namespace

std::vector<std::string> seeds() {
  const std::string uniform = R"({"layout":"uniform","bits":2,"group":0,"encoder":"minmax"})";
  const std::string blocks = R"({"layout":"blocks","group":0,"encoder":"search"})";
  return {
      manifest("1", uniform, R"({"heads":1,"orthogonal":true,"centered":false,"clip":[0.96]})"),
      manifest("3", uniform, R"({"heads":2,"orthogonal":false,"centered":true,"rotated_mean":true,"clip":[0.9,1]})"),
      manifest("2", blocks, R"({"heads":1,"orthogonal":true,"centered":false,"clip":[0],"widths":[4,2,1,0]})"),
      manifest("4", blocks, R"({"heads":1,"orthogonal":false,"centered":true,"clip":[0],"widths":[4,4,2,1]})", true)};
}

void read_input(std::string_view bytes) {
  Manifest read = manifest_from_json(parse_json(bytes, "oscar_bundle.json"), "oscar_bundle.json");
  Bundle& bundle = read.bundle;
  require(is_plain_word(bundle.method) || find_method(bundle.method) != nullptr, "a method is a word");
  if (bundle.model.contains("name")) {
    const std::string name = bundle.model["name"].get<std::string>();
    require(name.empty() || is_model_name(name), "a model has a plain name");
  }
  require(!bundle.layers.empty() && read.files.contains(kRotationsName), "there are layers, and a file of rotations");
  for (const LayerTransform& layer : bundle.layers) {
    for (const SideTransform* side : {&layer.key, &layer.value}) {
      require(side->clip.size() == 1 || std::ssize(side->clip) == layer.kv_heads, "a clip for the layer or each head");
      for (const float rho : side->clip) require(rho >= 0 && rho <= 1, "clips are ratios");
    }
  }
  for (const auto& [name, shape] : read.tensors) {
    for (const std::int64_t n : shape) require(n > 0 && n <= 4096, "tensors have sizes of a model");
  }
  if (bundle.provenance.contains("collection")) {
    const Json hashes = take_calibration_hashes(bundle.provenance["collection"]);
    require(hashes.is_array(), "hashes of the calibration text are a list of parts");
  }
  require_card(bundle_card(bundle));
}

}  // namespace oscar::fuzz
