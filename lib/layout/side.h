// Keys or values: a side of the cache.
#pragma once

#include <cstdint>

namespace oscar {

enum class Side : std::uint8_t { kKey, kValue };

}  // namespace oscar
