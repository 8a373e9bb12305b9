#include "kernels/decode/launch.cuh"

namespace oscar::kernels {
template cudaError_t launch_decode<64, 2>(const DecodeAttentionParams&, cudaStream_t);
template int decode_blocks<64, 2>();
}  // namespace oscar::kernels
