// Layers that statistics and bundles do not hold, by number and with the reason: as JSON under "left_out" beside the
// facts of the model, and as people read them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "statistics/statistics.h"

namespace oscar {

// A layer without a cache of its own, which reads that of layer `source`.
LeftOutLayer reads_another(std::int64_t layer, std::int64_t source);
// [{"layer": 0, "reason": "linear attention, no KV cache"}, {"layer": 3, "reason": "...", "reads": 2}, ...]
Json left_out_json(const std::vector<LeftOutLayer>& layers);
// Those of `model`, which may have none. InputError for numbers that do not ascend below `layers`, a layer that reads
// itself or a later one, no reason, or when nothing is left.
std::vector<LeftOutLayer> read_left_out(const Json& model, std::int64_t layers, const std::string& where);
// "layers 0 to 2, 4 (linear attention, no KV cache)"; nothing for none.
std::string left_out_text(const std::vector<LeftOutLayer>& layers);

}  // namespace oscar
