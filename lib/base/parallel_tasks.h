// Runs independent tasks, one per thread.
#pragma once

#include <cstdint>
#include <functional>

namespace oscar {

// Runs task(n) for n in [0, count) on as many threads as ATen may use; each thread takes the next n when it is free.
// Inside a task ATen and LAPACK use one thread, because operations on small tensors take less time than distributing
// them. LAPACK chooses its blocks by the number of threads it may use, so one thread also gives the same bits for any
// number of threads. A call from within a task runs its tasks one after another.
//
// After a task has thrown, no new one starts. Of several errors, the error of the lowest n is thrown.
void parallel_tasks(std::int64_t count, const std::function<void(std::int64_t)>& task);

}  // namespace oscar
