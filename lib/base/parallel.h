// Work on several threads.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace oscar {

// Runs independent tasks, one per thread.
// Runs task(n) for n in [0, count) on as many threads as ATen may use; each thread takes the next n when it is free.
// Inside a task ATen and LAPACK use one thread, because operations on small tensors take less time than distributing
// them. LAPACK chooses its blocks by the number of threads it may use, so one thread also gives the same bits for any
// number of threads. A call from within a task runs its tasks one after another.
//
// After a task has thrown, no new one starts. Of several errors, the error of the lowest n is thrown.
void parallel_tasks(std::int64_t count, const std::function<void(std::int64_t)>& task);

// Loops whose parts are independent, on ATen's threads.
// Calls part(begin, end) for ranges that cover [0, count), on at most at::get_num_threads() threads, with at least
// `grain` indices each (>= 1). One range on the calling thread if there is one thread, and within another such loop or
// a task of parallel_tasks(). Parts must not compute with tensors: their threads lack ATen's thread-local modes. Of
// several errors, the error of the lowest range is thrown.
void parallel_ranges(std::int64_t count, std::int64_t grain,
                     const std::function<void(std::int64_t, std::int64_t)>& part);

// The number of threads of a run that goes on. It comes from a file or from another process, so the machine bounds it.

constexpr const char* kThreadsOfRun = "the run was started with";

// Sets ATen's number of threads to `wanted`, with log_info() when it changes. More than the processors of this machine,
// and than the process was started with, become as many, with a warning. reason: "the run was started with".
void use_threads(int wanted, const std::string& reason);

}  // namespace oscar
