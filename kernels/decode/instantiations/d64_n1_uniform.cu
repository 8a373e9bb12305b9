#include "kernels/decode/launch.cuh"

namespace oscar::kernels {
template cudaError_t launch_decode<DecodeConfig<64, 1, false>>(const DecodeLaunch&, cudaStream_t);
template int decode_blocks<DecodeConfig<64, 1, false>>();
}  // namespace oscar::kernels
