// The rows of the registry that have learned vector codebooks.
#pragma once

#include <vector>

#include "registry/registry.h"

namespace oscar {

std::vector<MethodRow> codebook_methods();

}  // namespace oscar
