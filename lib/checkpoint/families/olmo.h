// Common parts of OLMo 2 and 3.
#pragma once

#include "checkpoint/families/family.h"

namespace oscar {

// Norms apply to the outputs of the branches, not to their inputs. RMSNorm covers the full projections of q and k.
Family olmo_family(const ModelConfig& config);

}  // namespace oscar
