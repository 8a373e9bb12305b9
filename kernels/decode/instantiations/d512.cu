#include "kernels/decode/instantiations/instantiate.cuh"

OSCAR_INSTANTIATE_BLOCKS(512, 1)
