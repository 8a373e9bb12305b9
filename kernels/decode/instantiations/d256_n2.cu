#include "kernels/decode/launch.cuh"

namespace oscar::kernels {
template cudaError_t launch_decode<256, 2>(const DecodeAttentionParams&, cudaStream_t);
template int decode_blocks<256, 2>();
}  // namespace oscar::kernels
