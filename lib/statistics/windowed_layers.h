// Layers whose queries never meet a quantized row, because their sliding window is no longer than the BF16 recent
// window (CacheWindows::hold). They have statistics, since windows are chosen later, and a fit leaves them out.
#pragma once

#include <string>
#include <vector>

#include "layout/cache_windows.h"
#include "statistics/statistics.h"

namespace oscar {

// These layers of the statistics, with the reason, ascending. Their windows are in the metadata ("geometry"); if it is
// absent, there are none. InputError naming `where` for a damaged record, and if no other layer is left.
std::vector<LeftOutLayer> windowed_layers(const Statistics& statistics, const CacheWindows& windows,
                                          const std::string& where);

// The statistics without these layers, which it lists as left out beside the layers that are absent anyway.
Statistics without_layers(Statistics statistics, const std::vector<LeftOutLayer>& layers);

}  // namespace oscar
