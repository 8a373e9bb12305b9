// Dispatches decode_attention() to the kernels built for the head size, GQA group and layout.
#include <algorithm>
#include <array>

#include "kernels/decode/merge.cuh"
#include "kernels/decode/page_queries.h"
#include "kernels/decode/part_exchange.cuh"

namespace oscar::kernels {

template <class C>
cudaError_t launch_decode(const DecodeLaunch& a, cudaStream_t stream);
template <class C>
int decode_blocks();

namespace {

// Calls f.template operator()<C>() for the instantiation that supports the shape; returns `otherwise` if none does.
template <class F, class R>
R dispatch(int head_dim, int gqa_group, bool blocks, bool positions, F&& f, R otherwise) {
  if (gqa_group < 1 || gqa_group > 16) return otherwise;
  const auto bands = [&]<int D, int NT>() {
    return positions ? f.template operator()<DecodeConfig<D, NT, true, true>>()
                     : f.template operator()<DecodeConfig<D, NT, true>>();
  };
  const auto heads = [&]<int D, int NT>() {
    return blocks ? bands.template operator()<D, NT>() : f.template operator()<DecodeConfig<D, NT, false>>();
  };
  const bool two = gqa_group > 8;
  switch (head_dim) {
    case 64:
      return two ? heads.template operator()<64, 2>() : heads.template operator()<64, 1>();
    case 128:
      return two ? heads.template operator()<128, 2>() : heads.template operator()<128, 1>();
    case 256:
      return two ? heads.template operator()<256, 2>() : heads.template operator()<256, 1>();
    case 512:
      return two || !blocks ? otherwise : bands.template operator()<512, 1>();
    default:
      return otherwise;
  }
}

bool widths_valid(const std::uint8_t* widths) {
  return std::all_of(widths, widths + 4, [](int w) { return w == 0 || w == 1 || w == 2 || w == 4; });
}

BandSide band_side_of(const SideLayout& side) {
  BandSide out{};
  int rank = 0;
  std::array<bool, 4> coded{};
  for (int width = 4; width > 0; width /= 2)
    for (int i = 0; i < side.planes; ++i) {
      const PlaneLayout& plane = side.plane[i];
      if (plane.width != width) continue;
      out.band[rank] = plane.sigma;
      out.width[rank] = width;
      out.codes[rank] = plane.offset;
      out.ranks[i] = rank++;
      coded[static_cast<std::size_t>(plane.sigma)] = true;
    }
  for (int b = 0; b < 4; ++b)
    if (!coded[static_cast<std::size_t>(b)]) out.band[rank] = b, out.ranks[rank] = rank, ++rank;
  out.scales = side.param_offset;
  return out;
}

// Words of the parts kernel's exchange, at the start of the workspace. Their number is equal for every shape, because
// launches of any shape must find them 0. That kernel has at most one block per multiprocessor, the number that
// decode_attention_blocks() returns for the largest shape.
std::size_t exchange_bytes() {
  return static_cast<std::size_t>(decode_attention_blocks(256, 16)) * sizeof(PartSums<DecodeConfig<128, 1, false>>);
}

}  // namespace

int decode_attention_blocks(int head_dim, int gqa_group) {
  return dispatch(
      head_dim, gqa_group, true, false, [&]<class C>() { return decode_blocks<C>(); }, 0);
}

std::size_t decode_attention_workspace_bytes(int head_dim, int gqa_group, int batch, int kv_heads, int page_queries) {
  const std::size_t blocks = static_cast<std::size_t>(decode_attention_blocks(head_dim, gqa_group));
  const std::size_t items = static_cast<std::size_t>(batch) * static_cast<std::size_t>(kv_heads);
  return dispatch(
      head_dim, gqa_group, true, false,
      [&]<class C>() {
        return exchange_bytes() + sizeof(int) * arrival_counters(batch * kv_heads) + 2 * blocks * sizeof(Partial<C>) +
               items * static_cast<std::size_t>(page_queries * gqa_group * kPageQueryBytes);
      },
      std::size_t{0});
}

PageLayout decode_page_layout(const PagedDecodeParams& p) {
  if (!p.blocks) return uniform_page(p.head_dim);
  const SideLayout key = band_side(p.head_dim, p.key_widths, 0);
  return {key, band_side(p.head_dim, p.value_widths, key.end())};
}

cudaError_t decode_attention(const PagedDecodeParams& p, cudaStream_t stream) {
  if (p.kv_heads < 1 || p.query_heads % p.kv_heads != 0 || p.flush < 1 || (p.flush & (p.flush - 1)) != 0 ||
      p.sink > p.sink_pages * kPageTokens || p.recent + p.flush - 1 > p.ring_pages * kPageTokens - (kTileTokens - 1)) {
    return cudaErrorInvalidValue;
  }
  if (has_positions(p) && (!p.blocks || p.rope_phases == nullptr || p.tile_phases == nullptr ||
                           (p.model_query == nullptr) != (p.key_mean == nullptr))) {
    return cudaErrorInvalidValue;
  }
  DecodeLaunch a{};
  a.p = p;
  if (p.blocks) {
    if (!widths_valid(p.key_widths) || !widths_valid(p.value_widths) || p.key_sigma == nullptr ||
        p.value_sigma == nullptr) {
      return cudaErrorInvalidValue;
    }
    const PageLayout page = decode_page_layout(p);
    a.key = band_side_of(page.key);
    a.value = band_side_of(page.value);
  }
  a.exchange = p.workspace;
  a.p.workspace = static_cast<std::uint8_t*>(p.workspace) + exchange_bytes();
  a.gqa_group = p.query_heads / p.kv_heads;
  a.page_bytes = decode_page_layout(p).bytes();
  a.row_offset = std::max(a.page_bytes, window_tile_bytes(p.head_dim) / 2);
  a.slot_bytes = a.row_offset;
  if (has_positions(p)) {
    a.slot_bytes += a.gqa_group * kPageQueryBytes;
    // After the parts of the workspace that other launches use.
    std::uint8_t* queries = static_cast<std::uint8_t*>(p.workspace) +
                            decode_attention_workspace_bytes(p.head_dim, a.gqa_group, p.batch, p.kv_heads);
    const cudaError_t error = write_page_queries(p, queries, stream);
    if (error != cudaSuccess) return error;
    a.page_queries = queries;
  }
  return dispatch(
      p.head_dim, a.gqa_group, p.blocks, has_positions(p), [&]<class C>() { return launch_decode<C>(a, stream); },
      cudaErrorInvalidValue);
}

}  // namespace oscar::kernels
