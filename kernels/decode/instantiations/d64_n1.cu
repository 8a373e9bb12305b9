#include "kernels/decode/launch.cuh"

namespace oscar::kernels {
template cudaError_t launch_decode<64, 1>(const DecodeAttentionParams&, cudaStream_t);
template int decode_blocks<64, 1>();
}  // namespace oscar::kernels
