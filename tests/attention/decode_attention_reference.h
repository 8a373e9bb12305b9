// The specification of decode attention (attention/cpu/tiered_decode.h): double accumulation, one token at a time,
// directly from the bytes of the pages (page_layout.h).
#pragma once

#include "attention/cpu/tiered_decode.h"

namespace oscar {

void decode_attention_reference(const TieredDecodeParams& params);

}  // namespace oscar
