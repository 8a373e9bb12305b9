#include "cache/cache_pages.h"

#include <limits>
#include <stdexcept>
#include <string>

#include "base/errors.h"

namespace oscar {

std::int32_t PageAllocator::allocate() {
  ++in_use_;
  if (!free_.empty()) {
    const std::int32_t page = free_.back();
    free_.pop_back();
    used_[static_cast<std::size_t>(page)] = true;
    return page;
  }
  if (used_.size() >= static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    throw EnvironmentError("the cache is out of page numbers");
  }
  used_.push_back(true);
  return static_cast<std::int32_t>(used_.size() - 1);
}

void PageAllocator::release(std::int32_t page) {
  if (page < 0 || static_cast<std::size_t>(page) >= used_.size() || !used_[static_cast<std::size_t>(page)]) {
    throw std::invalid_argument("page " + std::to_string(page) + " is not in use");
  }
  used_[static_cast<std::size_t>(page)] = false;
  free_.push_back(page);
  --in_use_;
}

}  // namespace oscar
