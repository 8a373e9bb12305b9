// A number as the cache's windows hold it.
#pragma once

#include "layout/float16.h"

namespace oscar {

inline float round_to_bfloat16(float value) { return bfloat16_value(bfloat16_bits(value)); }

}  // namespace oscar
