// Loops whose parts are independent, on ATen's threads.
#pragma once

#include <cstdint>
#include <functional>

namespace oscar {

// Calls part(begin, end) for ranges that cover [0, count), on at most at::get_num_threads() threads, with at least
// `grain` indices each (>= 1). One range on the calling thread if there is one thread, and within another such loop or
// a task of parallel_tasks(). Parts must not compute with tensors: their threads lack ATen's thread-local modes. Of
// several errors, the error of the lowest range is thrown.
void parallel_ranges(std::int64_t count, std::int64_t grain,
                     const std::function<void(std::int64_t, std::int64_t)>& part);

}  // namespace oscar
