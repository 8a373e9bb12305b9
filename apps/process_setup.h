// What a process needs before anything else runs in it.
#pragma once

#include <functional>

namespace oscar {

// Descriptors 0 to 2 that the parent closed are opened on /dev/null, so that no data file becomes one of them and
// receives messages. They are opened the wrong way round: what is written to a closed standard output still fails.
void open_standard_descriptors();

// Runs body() with at least 8 MiB of stack, in this thread or, where the limit of the process is smaller, in one that
// has them; threads that start later get as much.
int with_enough_stack(const std::function<int()>& body);

// Seconds since this process was started, to a hundredth: also what loading of libraries took before main(). 0 where
// /proc does not tell.
double process_seconds();

// Ends the process with this code, once its output is written. Destructors of libraries are left out: those of CUDA and
// LibTorch give back to the machine, piece by piece, what the end of the process gives back at once.
[[noreturn]] void end_process(int code);

}  // namespace oscar
