// All kernels of a head size D: one or two tiles of 8 query heads, the layouts `uniform` and `blocks`, and smaller
// blocks. OSCAR_INSTANTIATE_BLOCKS: of the layout `blocks`, no other.
#pragma once

#include "kernels/decode/launch.cuh"

#define OSCAR_INSTANTIATE(...)                                                                      \
  template cudaError_t launch_decode<DecodeConfig<__VA_ARGS__>>(const DecodeLaunch&, cudaStream_t); \
  template int decode_blocks<DecodeConfig<__VA_ARGS__>>();
#define OSCAR_INSTANTIATE_BLOCKS(D, NT) \
  namespace oscar::kernels {            \
  OSCAR_INSTANTIATE(D, NT, true)        \
  OSCAR_INSTANTIATE(D, NT, true, true)  \
  }
#define OSCAR_INSTANTIATE_HEAD_SIZE(D) \
  namespace oscar::kernels {           \
  OSCAR_INSTANTIATE(D, 1, false)       \
  OSCAR_INSTANTIATE(D, 2, false)       \
  }                                    \
  OSCAR_INSTANTIATE_BLOCKS(D, 1)       \
  OSCAR_INSTANTIATE_BLOCKS(D, 2)
