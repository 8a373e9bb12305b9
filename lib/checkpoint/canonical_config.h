// What of config.json identifies a model: everything but keys that programs rewrite while the model stays the same.
#pragma once

#include <string>

#include "base/json.h"

namespace oscar {

// canonical_json() of a config.json without these keys, which are left out of it and of the objects whose names end in
// "_config" (text_config, vision_config), but not of quantization_config: docs/format-bundle.md lists them.
std::string canonical_config(const Json& config);

}  // namespace oscar
