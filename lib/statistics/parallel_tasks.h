// Independent tasks, one to a thread.
#pragma once

#include <cstdint>
#include <functional>

namespace oscar {

// task(n) for n in [0, count), on as many threads as ATen may use, each taking the next n when it is free. Inside a
// task ATen and LAPACK use one thread: operations on small tensors take less time than handing them out does, LAPACK
// chooses its blocks by the number of threads it may use, and so a result has the same bits whatever that number is.
// Called from within a task, it runs one task after another.
//
// Nothing new is begun once a task has thrown; of several errors that of the lowest n is thrown.
void parallel_tasks(std::int64_t count, const std::function<void(std::int64_t)>& task);

}  // namespace oscar
