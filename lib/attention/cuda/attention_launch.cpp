#include "attention/cuda/attention_launch.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "attention/cuda/device_launch.h"
#include "kernels/kivi/kivi_attention.h"

namespace oscar {
namespace {

kernels::KiviSide kivi_side(const kernels::FallbackSide& side) {
  return {side.pages, side.page_bytes, side.head_bytes, side.lines.quant_group, side.norms != 0};
}

}  // namespace

kernels::FallbackSide general_side(const CachePages& format, Side side, const std::uint8_t* pages, const float* sigma) {
  const PageFormat page = format.format();
  kernels::FallbackSide s{};
  s.pages = pages, s.sigma = sigma;
  s.page_bytes = format.bytes(), s.head_bytes = page.head_bytes, s.page_tokens = format.tokens();
  s.values = side == Side::kValue ? 1 : 0, s.norms = page.norms ? 1 : 0;
  s.layout = page.rows;
  s.lines = {page.lines.bits, page.lines.line, page.lines.group, page.lines.channel_axis ? 1 : 0,
             page.lines.params_offset};
  return s;
}

at::Tensor AttentionLauncher::upload(const void* bytes, std::size_t count) const {
  // from_blob does not write through its pointer.
  return at::from_blob(const_cast<void*>(bytes), {static_cast<std::int64_t>(count)}, at::kByte)
      .to(device_, /*non_blocking=*/true);
}

void* AttentionLauncher::workspace(std::size_t bytes) {
  if (!workspace_.defined() || workspace_.nbytes() < bytes) {
    workspace_ = at::empty({static_cast<std::int64_t>(bytes)}, at::TensorOptions(at::kByte).device(device_));
  }
  return workspace_.mutable_data_ptr();
}

void FallbackLauncher::launch(kernels::FallbackAttentionParams& p, const AttentionInput& input,
                              const std::vector<kernels::FallbackSequence>& sequences) {
  const at::Tensor views = upload(sequences.data(), sequences.size() * sizeof(kernels::FallbackSequence));
  p.sequences = reinterpret_cast<const kernels::FallbackSequence*>(views.const_data_ptr());
  p.batch = static_cast<std::int32_t>(sequences.size());
  p.query_heads = static_cast<std::int32_t>(input.q.size(1)), p.kv_heads = static_cast<std::int32_t>(input.k.size(1));
  p.head_dim = static_cast<std::int32_t>(input.q.size(2));
  p.max_tokens = 0;
  for (const kernels::FallbackSequence& s : sequences) p.max_tokens = std::max(p.max_tokens, s.length);
  p.sliding_window = static_cast<std::int32_t>(input.sliding_window);
  p.chunk = static_cast<std::int32_t>(input.chunk);
  p.scale = static_cast<float>(input.scale), p.soft_cap = static_cast<float>(input.soft_cap);
  p.workspace = workspace(kernels::fallback_attention_workspace_bytes(p));
  check_launch(kernels::fallback_attention(p, current_stream()), "fallback_attention");
}

void KiviLauncher::launch(kernels::FallbackAttentionParams& general, const AttentionInput& input,
                          const std::vector<kernels::FallbackSequence>& sequences) {
  kernels::KiviAttentionParams p{};
  std::vector<kernels::KiviSequence> views;
  for (const kernels::FallbackSequence& s : sequences) {
    views.push_back({s.key.sink.rows, s.value.sink.rows, s.key.page_table, s.value.page_table, s.length,
                     s.key.body_tokens, s.value.body_tokens, s.key.recent.rows, s.value.recent.rows,
                     s.key.body_tokens - s.key.recent.first, s.value.body_tokens - s.value.recent.first});
    const std::int32_t page = general.key.page_tokens;
    const std::int32_t full = std::min(s.key.body_tokens, s.value.body_tokens) / page;
    p.max_pages = std::max(p.max_pages, full);
    p.max_loose = std::max(p.max_loose, s.length - page * full);
  }
  const at::Tensor device_views = upload(views.data(), views.size() * sizeof(kernels::KiviSequence));
  p.q = general.query, p.q_coded = general.query_coded, p.sink_logits = general.sink_logits;
  p.plain = general.output, p.coded = general.output_coded;
  p.sequences = reinterpret_cast<const kernels::KiviSequence*>(device_views.const_data_ptr());
  p.key = kivi_side(general.key), p.value = kivi_side(general.value);
  p.batch = static_cast<std::int32_t>(sequences.size()), p.query_heads = static_cast<std::int32_t>(input.q.size(1));
  p.kv_heads = static_cast<std::int32_t>(input.k.size(1)), p.head_dim = static_cast<std::int32_t>(input.q.size(2));
  p.sink = static_cast<std::int32_t>(sink_);
  p.sliding_window = static_cast<std::int32_t>(input.sliding_window);
  p.chunk = static_cast<std::int32_t>(input.chunk);
  p.scale = static_cast<float>(input.scale), p.soft_cap = static_cast<float>(input.soft_cap);
  p.workspace = workspace(kernels::kivi_attention_workspace_bytes(p));
  check_launch(kernels::kivi_attention(p, current_stream()), "kivi_attention");
}

}  // namespace oscar
