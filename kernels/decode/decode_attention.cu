// Dispatch of decode_attention() to the kernel built for the head size and group.
#include "kernels/decode/kernel.cuh"

namespace oscar::kernels {
namespace {

// Calls f.template operator()<D, NT>() for the instantiation that serves the shape; `otherwise` when none does.
template <class F, class R>
R dispatch(int head_dim, int group, F&& f, R otherwise) {
  if (group < 1 || group > 16) return otherwise;
  const bool two = group > 8;
  switch (head_dim) {
    case 64:
      return two ? f.template operator()<64, 2>() : f.template operator()<64, 1>();
    case 128:
      return two ? f.template operator()<128, 2>() : f.template operator()<128, 1>();
    case 256:
      return two ? f.template operator()<256, 2>() : f.template operator()<256, 1>();
    default:
      return otherwise;
  }
}

std::size_t arrivals_bytes(int batch, int kv_heads) { return sizeof(int) * ((batch * kv_heads + 63) / 64 * 64); }

}  // namespace

int decode_attention_blocks(int head_dim, int group) {
  return dispatch(
      head_dim, group, [&]<int D, int NT>() { return decode_blocks<D, NT>(); }, 0);
}

std::size_t decode_attention_workspace_bytes(int head_dim, int group, int batch, int kv_heads) {
  const std::size_t blocks = decode_attention_blocks(head_dim, group);
  return dispatch(
      head_dim, group,
      [&]<int D, int NT>() {
        return arrivals_bytes(batch, kv_heads) + 2 * blocks * sizeof(Partial<DecodeConfig<D, NT>>);
      },
      std::size_t{0});
}

cudaError_t decode_attention(const DecodeAttentionParams& p, cudaStream_t stream) {
  if (p.kv_heads < 1 || p.query_heads % p.kv_heads != 0 || p.flush < 1 || (p.flush & (p.flush - 1)) != 0 ||
      p.sink > p.sink_pages * kPageTokens || p.recent + p.flush - 1 > p.ring_pages * kPageTokens - (kTileTokens - 1)) {
    return cudaErrorInvalidValue;
  }
  return dispatch(
      p.head_dim, p.query_heads / p.kv_heads, [&]<int D, int NT>() { return launch_decode<D, NT>(p, stream); },
      cudaErrorInvalidValue);
}

}  // namespace oscar::kernels
