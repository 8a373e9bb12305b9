// The newest tokens of all layers in a step, on their way into pages: the layers' descriptors, and the launch that
// reads them.
#include "kernels/quantize/newest_tokens.h"

#include <cstring>
#include <limits>
#include <type_traits>

#include "oscar_kv/csrc/codes.h"
#include "oscar_kv/csrc/table_check.h"
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
  if (!sides.is_cpu() || sides.scalar_type() != ScalarType::Byte || !sides.is_contiguous() || sides.dim() != 2 ||
      sides.size(0) != 2 || sides.size(1) != kSideBytes) {
    arguments.refuse("sides are no Byte [2, " + std::to_string(kSideBytes) + "] on the CPU");
  }
  const PageCode code(arguments, key_code, value_code);
  const std::int64_t kv_heads = pool.dim() == 3 ? pool.size(1) : kAny;
  NewestSide side{};
  side.pages = arguments.get<std::uint8_t>(pool, "pool", ScalarType::Byte, {kAny, kv_heads, code.page.bytes()});
  side.windows = static_cast<const std::uint8_t*>(arguments.address(
      windows, "windows", ScalarType::BFloat16, {kAny, kv_heads, 2 * oscar::kPageTokens * code.head_dim()}));
  side.page_bytes = code.page.bytes();
  for (const bool value : {false, true}) {
    side.layout = value ? code.page.value : code.page.key, side.value_side = value;
    side.clip = arguments.get<float>(value ? value_clip : key_clip, "clip", ScalarType::Float, {kv_heads});
    side.sigma = arguments.get<float>(value ? value_sigma : key_sigma, "sigma", ScalarType::Float, {kv_heads, 4});
    side.bad = arguments.get<std::int32_t>(bad, "bad", ScalarType::Int, {2}) + (value ? 1 : 0);
    std::memcpy(static_cast<std::uint8_t*>(sides.data_ptr()) + (value ? kSideBytes : 0), &side, sizeof side);
  }
}

void flush_layers(const Tensor& lengths, const Tensor& table, const Tensor& window_table, const Tensor& sides,
                  std::int64_t kv_heads, std::int64_t head_dim, std::int64_t sink, bool search) {
  const Arguments arguments("flush_layers", lengths);
  const std::int64_t batch = lengths.dim() == 1 ? lengths.size(0) : kAny;
  oscar::kernels::NewestTokensParams p{};
  p.sides = reinterpret_cast<const NewestSide*>(
      arguments.get<std::uint8_t>(sides, "sides", ScalarType::Byte, {kAny, kSideBytes}));
  p.lengths = arguments.get<std::int32_t>(lengths, "lengths", ScalarType::Int, {batch});
  p.page_table = arguments.get<std::int32_t>(table, "table", ScalarType::Int, {batch, kAny});
  p.window_table = arguments.get<std::int32_t>(window_table, "window_table", ScalarType::Int, {batch, kAny});
  p.side_count = arguments.int32(sides.size(0), "sides"), p.batch = arguments.int32(batch, "sequences");
  p.max_pages = arguments.int32(table.size(1), "pages of a sequence");
  p.kv_heads = arguments.int32(kv_heads, "KV heads"), p.head_dim = arguments.int32(head_dim, "head_dim");
  p.sink = arguments.int32(sink, "sink");
  p.sink_pages = (p.sink + oscar::kPageTokens - 1) / oscar::kPageTokens;
  p.ring_pages = arguments.int32(window_table.size(1) - p.sink_pages, "ring pages");
  require_ring(arguments, p.ring_pages, 1);
  p.encoder = encoder_of(search);
  // The sizes of the pools are unknown here, so the check finds only negative ids and missing pages.
  oscar::kernels::StepTables step{};
  step.lengths = p.lengths, step.table = p.page_table, step.window_table = p.window_table;
  step.batch = p.batch, step.max_pages = p.max_pages, step.sink_pages = p.sink_pages, step.ring_pages = p.ring_pages;
  step.pages = step.window_pages = std::numeric_limits<std::int32_t>::max();
  step.sink = p.sink, step.newest_only = true;
  check_tables(arguments, step);
  arguments.launched(oscar::kernels::newest_tokens(p, arguments.stream()), "newest_tokens");
}

STABLE_TORCH_LIBRARY_IMPL(oscar_kv, CUDA, m) {
  m.impl("describe_layer", TORCH_BOX(&describe_layer));
  m.impl("flush_layers", TORCH_BOX(&flush_layers));
}

}  // namespace oscar_kv
