// The newest tokens of all layers in a step, on their way into pages: the layers' descriptors, and the launch that
// reads them.
#include "kernels/quantize/newest_tokens.h"

#include <cstring>
#include <type_traits>

#include "kernels/latent/latent_codes.h"
#include "oscar_kv/csrc/codes.h"
#include "oscar_kv/csrc/windows.h"

namespace oscar_kv {

using oscar::kernels::NewestSide;
static_assert(std::is_trivially_copyable_v<NewestSide>);
constexpr std::int64_t kSideBytes = oscar::kernels::kNewestSideBytes;

// On the host: writes the descriptors of a layer, two NewestSide, for flush_layers().
void describe_layer(const Tensor& sides, const Tensor& pool, const Tensor& windows, const Tensor& key_sigma,
                    const Tensor& value_sigma, const Tensor& key_clip, const Tensor& value_clip, const Tensor& bad,
                    const std::vector<std::int64_t>& key_code, const std::vector<std::int64_t>& value_code) {
  const Arguments arguments("describe_layer", pool);
  std::uint8_t* to = arguments.host_bytes(sides, "sides", {2, kSideBytes});
  const WrittenPages pages(arguments, pool,
                           {{key_sigma, value_sigma, key_code, value_code}, key_clip, value_clip, bad, false});
  const std::uint8_t* window_pages = windows_of(arguments, windows, pages.kv_heads, pages.code.head_dim());
  for (const oscar::kernels::QuantizePagesParams* of : {&pages.key, &pages.value}) {
    const NewestSide side{of->layout,    of->pages, window_pages, of->clip, of->sigma, of->bad, pages.code.page.bytes(),
                          of->value_side};
    std::memcpy(to, &side, sizeof side);
    to += kSideBytes;
  }
}

void flush_layers(const Tensor& lengths, const Tensor& table, const Tensor& window_table, const Tensor& sides,
                  std::int64_t kv_heads, std::int64_t row, std::int64_t sink, bool search) {
  const Arguments arguments("flush_layers", lengths);
  const Sequences sequences(arguments, lengths, window_table, sink);
  oscar::kernels::NewestTokensParams p{};
  sequences.put(p), sequences.put_pages(arguments, table, p);
  p.sides = reinterpret_cast<const NewestSide*>(
      arguments.get<std::uint8_t>(sides, "sides", ScalarType::Byte, {kAny, kSideBytes}));
  p.side_count = arguments.int32(sides.size(0), "sides"), p.encoder = encoder_of(search);
  p.kv_heads = arguments.int32(kv_heads, "KV heads"), p.head_dim = arguments.int32(row, "row");
  const cudaStream_t stream = arguments.stream();
  arguments.launched(row == oscar::kLatentRow ? newest_latents(p, stream) : newest_tokens(p, stream), "newest_tokens");
}

STABLE_TORCH_LIBRARY_IMPL(oscar_kv, CUDA, m) {
  m.impl("describe_layer", TORCH_BOX(&describe_layer));
  m.impl("flush_layers", TORCH_BOX(&flush_layers));
}

}  // namespace oscar_kv
