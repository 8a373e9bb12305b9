// LibTorch loads its GPU factorizations (Cholesky, triangular solves, eigenproblems) on first use. It fails if a second
// thread calls one before loading completes ("lazy wrapper should be called at most once").
#pragma once

#include <c10/core/Device.h>

namespace oscar {

// Loads them, or waits for the thread that does. Call it before each factorization of tensors that may be on a GPU.
// Does nothing on the CPU.
void begin_linear_algebra(c10::Device device);

}  // namespace oscar
