// LibTorch loads its factorizations for GPUs (Cholesky, triangular solves, eigenproblems) when the first of them is
// called, and fails where a second thread calls one before that is done ("lazy wrapper should be called at most once").
#pragma once

#include <c10/core/Device.h>

namespace oscar {

// Loads them, or waits for the thread that does. To be called before each factorization of tensors that may be on a
// GPU; nothing on the CPU.
void begin_linear_algebra(c10::Device device);

}  // namespace oscar
