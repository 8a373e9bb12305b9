// The newest tokens of a step, on their way into pages: of one layer, or of all, whose descriptors the launch reads.
#include "kernels/quantize/newest_tokens.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <type_traits>

#include "kernels/latent/latent_codes.h"
#include "oscar_kv/csrc/codes.h"
#include "oscar_kv/csrc/windows.h"

namespace oscar_kv {

using oscar::kernels::NewestSide;
static_assert(std::is_trivially_copyable_v<NewestSide>);
constexpr std::int64_t kSideBytes = oscar::kernels::kNewestSideBytes;

namespace {

// Keys and values of a layer.
std::array<NewestSide, 2> sides_of(const Arguments& arguments, const Tensor& windows, const WrittenPages& pages) {
  const std::uint8_t* from = windows_of(arguments, windows, pages.kv_heads, pages.code.head_dim());
  const auto side = [&](const oscar::kernels::QuantizePagesParams& p) {
    return NewestSide{p.layout, p.pages, from, p.clip, p.sigma, p.bad, pages.code.page.bytes(), p.value_side};
  };
  return {side(pages.key), side(pages.value)};
}

void launch(const Arguments& arguments, oscar::kernels::NewestTokensParams& p, const Sequences& sequences,
            const Tensor& table, std::int64_t kv_heads, std::int64_t row, bool search) {
  sequences.put(p), sequences.put_pages(arguments, table, p);
  p.encoder = encoder_of(search);
  p.kv_heads = arguments.int32(kv_heads, "KV heads"), p.head_dim = arguments.int32(row, "row");
  const cudaStream_t stream = arguments.stream();
  const bool latents = p.sides != nullptr && row == oscar::kLatentRow;
  arguments.launched(latents ? newest_latents(p, stream) : newest_tokens(p, stream), "newest_tokens");
}

}  // namespace

void flush_tokens(const Tensor& pool, const Tensor& windows, const Tensor& window_table, const Tensor& table,
                  const Tensor& lengths, const Tensor& key_sigma, const Tensor& value_sigma, const Tensor& key_clip,
                  const Tensor& value_clip, const Tensor& bad, std::int64_t sink, bool search,
                  const std::vector<std::int64_t>& key_code, const std::vector<std::int64_t>& value_code) {
  const Arguments arguments("flush_tokens", pool);
  const WrittenPages pages(arguments, pool,
                           {{key_sigma, value_sigma, key_code, value_code}, key_clip, value_clip, bad, search});
  oscar::kernels::NewestTokensParams p{};
  const std::array<NewestSide, 2> sides = sides_of(arguments, windows, pages);
  std::copy(sides.begin(), sides.end(), p.layer), p.side_count = 2;
  launch(arguments, p, {arguments, lengths, window_table, sink}, table, pages.kv_heads, pages.code.head_dim(), search);
}

// On the host: writes the descriptors of a layer, two NewestSide, for flush_layers().
void describe_layer(const Tensor& sides, const Tensor& pool, const Tensor& windows, const Tensor& key_sigma,
                    const Tensor& value_sigma, const Tensor& key_clip, const Tensor& value_clip, const Tensor& bad,
                    const std::vector<std::int64_t>& key_code, const std::vector<std::int64_t>& value_code) {
  const Arguments arguments("describe_layer", pool);
  std::uint8_t* to = arguments.host_bytes(sides, "sides", {2, kSideBytes});
  const WrittenPages pages(arguments, pool,
                           {{key_sigma, value_sigma, key_code, value_code}, key_clip, value_clip, bad, false});
  std::memcpy(to, sides_of(arguments, windows, pages).data(), 2 * kSideBytes);
}

void flush_layers(const Tensor& lengths, const Tensor& table, const Tensor& window_table, const Tensor& sides,
                  std::int64_t kv_heads, std::int64_t row, std::int64_t sink, bool search) {
  const Arguments arguments("flush_layers", lengths);
  oscar::kernels::NewestTokensParams p{};
  p.sides = reinterpret_cast<const NewestSide*>(
      arguments.get<std::uint8_t>(sides, "sides", ScalarType::Byte, {kAny, kSideBytes}));
  p.side_count = arguments.int32(sides.size(0), "sides");
  launch(arguments, p, {arguments, lengths, window_table, sink}, table, kv_heads, row, search);
}

STABLE_TORCH_LIBRARY_IMPL(oscar_kv, CUDA, m) {
  m.impl("flush_tokens", TORCH_BOX(&flush_tokens));
  m.impl("describe_layer", TORCH_BOX(&describe_layer));
  m.impl("flush_layers", TORCH_BOX(&flush_layers));
}

}  // namespace oscar_kv
