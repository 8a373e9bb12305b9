#include "kernels/decode/instantiations/instantiate.cuh"

OSCAR_INSTANTIATE_HEAD_SIZE(128)
