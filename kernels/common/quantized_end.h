// Which tokens of a sequence are codes: one rule for the CPU cache and the CUDA kernels.
#pragma once

#include "kernels/common/page_layout.h"

namespace oscar {

// Tokens [sink, quantized_end()) of n are codes: beyond both windows they leave in groups of `flush`, which on a GPU is
// a power of two.
template <typename Count>
OSCAR_HOST_DEVICE constexpr Count quantized_end(Count n, Count sink, Count recent, Count flush) {
  const Count leaving = n - sink - recent > 0 ? n - sink - recent : 0;
#if defined(__CUDA_ARCH__)
  return sink + (leaving & -flush);
#else
  return sink + leaving / flush * flush;
#endif
}

}  // namespace oscar
