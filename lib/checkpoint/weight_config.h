// 'quantization_config' of config.json: what tensors, shapes and dtypes leave open about quantized weights. Which
// format a weight has is told by its tensors (weights/stored_weight.h), not by this, and lists of modules that were
// left out
// ('ignore', 'modules_to_not_convert') are not needed for it.
#pragma once

#include <cstdint>
#include <string>

#include "base/json.h"

namespace oscar {

struct WeightConfig {
  std::string method;                                  // 'quant_method'; empty: none is named
  std::int64_t block_rows = 128, block_columns = 128;  // that share one FP8 scale, where scales are a matrix
  std::int64_t zero_point_offset = 1;  // GPTQ: the zero point is the stored one plus this; 0 in "gptq_v2"
};

// Of a whole config.json, which may have none. InputError for a method that is not read (the message names those that
// are), weights that a transform of activations belongs to, and block sizes that are no sizes or differ between groups.
WeightConfig parse_weight_config(const Json& config, const std::string& where);

}  // namespace oscar
