// What OLMo 2 and 3 share.
#pragma once

#include "checkpoint/families/family.h"

namespace oscar {

// No norms before the branches, only of what they add; RMSNorm over the whole projections of q and k.
Family olmo_family(const ModelConfig& config);

}  // namespace oscar
