// Numbers of pages in a pool.
#pragma once

#include <cstdint>
#include <vector>

namespace oscar {

// Hands out page ids from 0 on; released ids are reused first.
class PageAllocator {
 public:
  std::int32_t allocate();          // EnvironmentError if all 2^31 - 1 are in use
  void release(std::int32_t page);  // std::invalid_argument for a page that is not in use
  std::int64_t pages_in_use() const { return in_use_; }
  std::int64_t pages_ever() const { return static_cast<std::int64_t>(used_.size()); }  // all ids are below this

 private:
  std::vector<std::int32_t> free_;
  std::vector<bool> used_;
  std::int64_t in_use_ = 0;
};

}  // namespace oscar
