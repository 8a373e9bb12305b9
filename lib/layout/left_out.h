// Layers that statistics and bundles do not hold, by number and with the reason: as JSON under "left_out" beside the
// model facts, and as text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace oscar {

// A layer of the model that statistics or a bundle do not hold, and the reason: "gated delta net". `reads`: the layer
// whose keys and values it attends to, if it has none itself.
struct LeftOutLayer {
  std::int64_t layer = 0;
  std::string reason;
  std::optional<std::int64_t> reads;
};

// A layer without its own cache, which reads the cache of layer `source`.
LeftOutLayer reads_another(std::int64_t layer, std::int64_t source);
// [{"layer": 0, "reason": "linear attention, no KV cache"}, {"layer": 3, "reason": "...", "reads": 2}, ...]
Json left_out_json(const std::vector<LeftOutLayer>& layers);
// The left-out layers of `model`, which may have none. InputError for numbers that do not ascend or are not below
// `layers`, and for a layer that reads itself or a later one. Also for a missing reason, or if no layer is left.
std::vector<LeftOutLayer> read_left_out(const Json& model, std::int64_t layers, const std::string& where);
// "layers 0 to 2, 4 (linear attention, no KV cache)"; empty if there are none.
std::string left_out_text(const std::vector<LeftOutLayer>& layers);

}  // namespace oscar
