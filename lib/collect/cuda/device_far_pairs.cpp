#include "collect/device_sums.h"

#include <ATen/ATen.h>

#include "base/cuda/launch.h"
#include "kernels/far_pairs/far_pair_sums.h"

namespace oscar {
namespace {

const std::uint16_t* bits(const at::Tensor& x) { return static_cast<const std::uint16_t*>(x.const_data_ptr()); }

// Rows that are contiguous within a token: [T, H, d], with any stride between tokens that keeps 16-byte alignment.
at::Tensor packed(const at::Tensor& x) {
  const bool rows = x.stride(2) == 1 && x.stride(1) == x.size(2) && x.stride(0) % 8 == 0;
  return rows && reinterpret_cast<std::uintptr_t>(x.const_data_ptr()) % 16 == 0 ? x : x.clone();
}

}  // namespace

bool device_far_pairs_built(const AttentionInput& input) {
  return input.q.is_cuda() && !input.k_rope.defined() && input.q.scalar_type() == at::kBFloat16 &&
         input.k.scalar_type() == at::kBFloat16 && input.sees_all() && input.soft_cap == 0.0 &&
         kernels::far_pairs_built(static_cast<int>(input.q.size(2)));
}

SplitValues split_values(const at::Tensor& u, const at::Tensor& center) {
  const at::Tensor rows = u.contiguous(), middle = center.contiguous();
  SplitValues out{at::empty(rows.sizes(), rows.options().dtype(at::kBFloat16)),
                  at::empty(rows.sizes(), rows.options().dtype(at::kBFloat16)),
                  at::empty({rows.size(0), rows.size(1)}, rows.options())};
  kernels::SplitRowsParams p;
  p.rows = rows.const_data_ptr<float>(), p.center = middle.const_data_ptr<float>();
  p.high = static_cast<std::uint16_t*>(out.high.data_ptr()), p.low = static_cast<std::uint16_t*>(out.low.data_ptr());
  p.norm = out.norm.data_ptr<float>();
  p.tokens = rows.size(1);
  p.heads = static_cast<std::int32_t>(rows.size(0)), p.head_dim = static_cast<std::int32_t>(rows.size(2));
  check_launch(kernels::split_rows(p, current_stream()), "split_rows");
  return out;
}

FarSums device_far_pairs(const AttentionInput& input, const at::Tensor& queries, const at::Tensor& keys,
                         const SplitValues& u, const at::Tensor& targets, const at::Tensor& center, std::int64_t first,
                         const FarPairs& pairs) {
  const at::Tensor q = packed(queries), k = packed(keys), w = targets.contiguous(), middle = center.contiguous();
  const at::Tensor sinks = input.sinks.defined() ? input.sinks.to(q.device(), at::kFloat).contiguous() : at::Tensor();
  FarSums out{at::empty({w.size(0), w.size(1)}, w.options()), at::empty({w.size(0), w.size(1)}, w.options())};
  kernels::FarPairsParams p;
  p.q = bits(q), p.k = bits(k), p.u_high = bits(u.high), p.u_low = bits(u.low);
  p.u_norm = u.norm.const_data_ptr<float>(), p.w = w.const_data_ptr<float>();
  p.center = middle.const_data_ptr<float>();
  p.sink_logits = sinks.defined() ? sinks.const_data_ptr<float>() : nullptr;
  p.moved = out.moved.data_ptr<float>(), p.seen = out.seen.data_ptr<float>();
  p.q_stride = q.stride(0), p.k_stride = k.stride(0);
  const auto number = [](std::int64_t n) { return static_cast<std::int32_t>(n); };
  p.tokens = number(k.size(0)), p.query_heads = number(q.size(1)), p.kv_heads = number(k.size(1));
  p.head_dim = number(q.size(2)), p.first = number(first), p.count = number(w.size(1));
  p.sink = number(pairs.sink), p.recent = number(pairs.recent);
  p.scale = static_cast<float>(input.scale);
  check_launch(kernels::far_pairs(p, current_stream()), "far_pairs");
  return out;
}

}  // namespace oscar
