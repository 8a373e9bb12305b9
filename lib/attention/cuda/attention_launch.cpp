#include "attention/cuda/attention_launch.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "attention/cuda/device_launch.h"

namespace oscar {
kernels::FallbackSide general_side(const CachePages& format, Side side, const std::uint8_t* pages, const float* sigma) {
  const PageFormat page = format.format();
  kernels::FallbackSide s{};
  s.pages = pages, s.sigma = sigma;
  s.page_bytes = format.bytes(), s.head_bytes = page.head_bytes, s.page_tokens = format.tokens();
  s.values = side == Side::kValue ? 1 : 0;
  s.layout = page.rows;
  return s;
}

void FallbackLauncher::launch(kernels::FallbackAttentionParams& p, const AttentionInput& input,
                              const std::vector<kernels::FallbackSequence>& sequences) {
  // from_blob does not write through its pointer.
  auto* host = const_cast<kernels::FallbackSequence*>(sequences.data());
  const auto host_bytes = static_cast<std::int64_t>(sequences.size() * sizeof(kernels::FallbackSequence));
  const at::Tensor views = at::from_blob(host, {host_bytes}, at::kByte).to(device_, /*non_blocking=*/true);
  p.sequences = reinterpret_cast<const kernels::FallbackSequence*>(views.const_data_ptr());
  p.batch = static_cast<std::int32_t>(sequences.size());
  p.query_heads = static_cast<std::int32_t>(input.q.size(1)), p.kv_heads = static_cast<std::int32_t>(input.k.size(1));
  p.head_dim = static_cast<std::int32_t>(input.q.size(2));
  p.max_tokens = 0;
  for (const kernels::FallbackSequence& s : sequences) p.max_tokens = std::max(p.max_tokens, s.length);
  p.sliding_window = static_cast<std::int32_t>(input.sliding_window);
  p.chunk = static_cast<std::int32_t>(input.chunk);
  p.scale = static_cast<float>(input.scale), p.soft_cap = static_cast<float>(input.soft_cap);
  const std::size_t bytes = kernels::fallback_attention_workspace_bytes(p);
  if (!workspace_.defined() || workspace_.nbytes() < bytes) {
    workspace_ = at::empty({static_cast<std::int64_t>(bytes)}, at::TensorOptions(at::kByte).device(device_));
  }
  p.workspace = workspace_.mutable_data_ptr();
  check_launch(kernels::fallback_attention(p, current_stream()), "fallback_attention");
}

}  // namespace oscar
