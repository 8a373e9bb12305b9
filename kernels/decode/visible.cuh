// The first position that the last token of a sequence sees, by its layer's window or chunk.
#pragma once

#include <cuda_runtime_api.h>

namespace oscar::kernels {

// sliding_window w > 0: the query sees the last w tokens; chunk c > 0 (then there is no window): the tokens of its own
// chunk of c; else all tokens.
__device__ __forceinline__ int first_visible(int length, int sliding_window, int chunk) {
  if (chunk > 0) return max(0, length - 1) / chunk * chunk;
  return sliding_window > 0 ? max(0, length - sliding_window) : 0;
}

}  // namespace oscar::kernels
