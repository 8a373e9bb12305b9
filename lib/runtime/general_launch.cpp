#include "runtime/general_launch.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "runtime/device_launch.h"

namespace oscar {

kernels::GeneralSide general_side(const PageLayout& page, Side side, std::int64_t kv_heads, const std::uint8_t* pages,
                                  const float* sigma) {
  kernels::GeneralSide s{};
  s.pages = pages, s.sigma = sigma;
  s.page_bytes = std::int64_t{page.bytes()} * kv_heads, s.head_bytes = page.bytes(), s.page_tokens = kPageTokens;
  s.values = side == Side::kValue ? 1 : 0;
  s.layout = side == Side::kKey ? page.key : page.value;
  return s;
}

kernels::GeneralSide general_side(const DescribedPages& layout, bool norms, const std::uint8_t* pages,
                                  std::int64_t page_bytes) {
  kernels::GeneralSide s{};
  s.pages = pages, s.page_bytes = page_bytes, s.head_bytes = static_cast<std::int32_t>(layout.bytes());
  s.page_tokens = kDescribedPageTokens, s.norms = norms ? 1 : 0;
  s.lines = {layout.bits(), layout.line(), layout.group(), layout.channel_axis() ? 1 : 0,
             static_cast<std::int32_t>(layout.code_bytes())};
  return s;
}

void GeneralLauncher::launch(kernels::GeneralAttentionParams& p, const AttentionInput& input,
                             const std::vector<kernels::GeneralSequence>& sequences) {
  const auto bytes = static_cast<std::int64_t>(sequences.size() * sizeof(kernels::GeneralSequence));
  // from_blob does not write through its pointer.
  auto* source = const_cast<kernels::GeneralSequence*>(sequences.data());
  const at::Tensor views = at::from_blob(source, {bytes}, at::kByte).to(device_);
  p.sequences = reinterpret_cast<const kernels::GeneralSequence*>(views.const_data_ptr());
  p.batch = static_cast<std::int32_t>(sequences.size());
  p.query_heads = static_cast<std::int32_t>(input.q.size(1)), p.kv_heads = static_cast<std::int32_t>(input.k.size(1));
  p.head_dim = static_cast<std::int32_t>(input.q.size(2));
  p.max_tokens = 0;
  for (const kernels::GeneralSequence& s : sequences) p.max_tokens = std::max(p.max_tokens, s.length);
  p.sliding_window = static_cast<std::int32_t>(input.sliding_window);
  p.scale = static_cast<float>(input.scale), p.soft_cap = static_cast<float>(input.soft_cap);
  const auto needed = static_cast<std::int64_t>(kernels::general_attention_workspace_bytes(p));
  if (!workspace_.defined() || workspace_.size(0) < needed) {
    workspace_ = at::empty({needed}, at::TensorOptions(at::kByte).device(device_));
  }
  p.workspace = workspace_.mutable_data_ptr();
  check_launch(kernels::general_attention(p, current_stream()), "general_attention");
}

}  // namespace oscar
