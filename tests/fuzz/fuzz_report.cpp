#include "export/export_card.h"
#include "fuzz/card_properties.h"

namespace oscar::fuzz {
namespace {

// A bundle without matrices: cards show its facts alone.
Bundle evaluated_bundle() {
  Bundle bundle;
  bundle.method = "oscar";
  bundle.scope = "layer";
  bundle.model = {{"name", "org/model"}};
  LayerTransform layer;
  layer.head_dim = 64;
  layer.kv_heads = 2;
  bundle.layers.push_back(layer);
  return bundle;
}

}  // namespace

std::vector<std::string> seeds() {
  const std::string rows =
      R"("methods":[{"id":"bf16","path":"prefill","comparison":"common","evaluated":false,"bits_per_element":16.0,)"
      R"("kl":{"mean":0,"p999":0},"ppl_ratio":1.0,"same_top1":1.0},{"id":"oscar","path":"decode","comparison":"common",)"
      R"("evaluated":true,"bits_per_element":2.75,"kl":{"mean":0.1,"p999":2.5},"ppl_ratio":1.01,"same_top1":0.9}])";
  return {R"({"format_version":2,"model":{"fingerprint":"v2:sha256:00"},"text":{"sha256":"00"},"context":2048,)"
          R"("options":{"dtype":"float32"},)" +
              rows + "}",
          "{" + rows + "}", "{}"};
}

void read_input(std::string_view bytes) {
  static const Bundle bundle = evaluated_bundle();
  const Json report = parse_json(bytes, "report.json");
  ExportCard card{.format = "sglang-branch"};
  card.key_file = "k.pt", card.value_file = "v.pt";
  require_card(export_card(bundle, card, &report));
}

}  // namespace oscar::fuzz
