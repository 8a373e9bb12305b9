// 'quantization_config' of config.json: facts about quantized weights that tensors do not show. A weight's tensors
// determine its format (weights/stored_weight.h). Therefore lists of skipped modules ('ignore',
// 'modules_to_not_convert') are not needed.
#pragma once

#include <cstdint>
#include <string>

#include "base/json.h"

namespace oscar {

struct WeightConfig {
  std::string method;                                  // 'quant_method'; empty: not named
  std::int64_t block_rows = 128, block_columns = 128;  // shape of a block with one FP8 scale, if scales are a matrix
  std::int64_t zero_point_offset = 1;                  // GPTQ: added to the stored zero point; 0 in "gptq_v2"
  bool act_order = false;                              // GPTQ: columns are in any groups, which X.g_idx lists
};

// Parses an entire config.json; the key may be absent. InputError for an unsupported method (the message lists the
// supported ones), or weights that require a transform of activations. Also for invalid block sizes and block sizes
// that differ between groups.
WeightConfig parse_weight_config(const Json& config, const std::string& where);

}  // namespace oscar
