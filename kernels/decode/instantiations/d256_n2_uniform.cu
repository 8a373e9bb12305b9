#include "kernels/decode/launch.cuh"

namespace oscar::kernels {
template cudaError_t launch_decode<DecodeConfig<256, 2, false>>(const DecodeLaunch&, cudaStream_t);
template int decode_blocks<DecodeConfig<256, 2, false>>();
}  // namespace oscar::kernels
