// Keys or values: which half of the cache something belongs to.
#pragma once

#include <cstdint>

namespace oscar {

enum class Side : std::uint8_t { kKey, kValue };

}  // namespace oscar
