#include "kernels/decode/launch.cuh"

namespace oscar::kernels {
template cudaError_t launch_decode<128, 2>(const DecodeAttentionParams&, cudaStream_t);
template int decode_blocks<128, 2>();
}  // namespace oscar::kernels
