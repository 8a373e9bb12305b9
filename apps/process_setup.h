// Set-up that a process needs before anything else.
#pragma once

namespace oscar {

// Opens closed descriptors 0 to 2 on /dev/null, so that no data file gets such a number and receives messages. They are
// opened in the wrong direction, so that writing to a closed standard output still fails.
void open_standard_descriptors();

// Ends the process with this code after its output is written. Skips destructors of libraries: CUDA's and LibTorch's
// would free piece by piece what the end of the process frees at once.
[[noreturn]] void end_process(int code);

}  // namespace oscar
