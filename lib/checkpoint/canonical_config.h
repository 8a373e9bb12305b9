// The part of config.json that identifies a model: everything except keys that programs rewrite for an unchanged model.
#pragma once

#include <string>

#include "base/json.h"

namespace oscar {

// canonical_json() of a config.json without these keys. They are also removed from objects whose names end in "_config"
// (text_config, vision_config), except quantization_config. docs/format-bundle.md lists them.
std::string canonical_config(const Json& config);

}  // namespace oscar
