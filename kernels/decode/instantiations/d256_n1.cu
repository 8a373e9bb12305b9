#include "kernels/decode/launch.cuh"

namespace oscar::kernels {
template cudaError_t launch_decode<256, 1>(const DecodeAttentionParams&, cudaStream_t);
template int decode_blocks<256, 1>();
}  // namespace oscar::kernels
