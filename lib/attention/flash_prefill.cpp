#include "attention/fast_prefill.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <tuple>

namespace oscar {
namespace {

constexpr std::int64_t kMergeBlock = 8192;  // queries whose parts are held in FP32 at once
// cuDNN's kernels are 1.7 times as fast as ATen's own on a Hopper GPU. But cuDNN builds a plan for every sequence
// length, which takes part of the time of a layer with this many tokens.
constexpr std::int64_t kCudnnTokens = 8192;

// Rows of a side in the form that the kernel reads, [T, H, d] BF16.
at::Tensor kernel_rows_of(const at::Tensor& rows) { return rows.to(at::kBFloat16).transpose(0, 1); }

// With `causal`, the last query sees the last key; a query also sees at most `reach` keys before its own, if given.
AttentionPart flash(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale, bool causal,
                    std::optional<std::int64_t> reach = std::nullopt) {
  const std::optional<std::int64_t> right = reach ? std::optional<std::int64_t>(0) : std::nullopt;
  auto [out, lse, seed, offset, mask] = at::_flash_attention_forward(
      q.unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0), std::optional<at::Tensor>(), std::optional<at::Tensor>(),
      q.size(0), k.size(0), 0.0, causal && !reach, false, scale, reach, right);
  return {out.squeeze(0), lse.squeeze(0).transpose(0, 1)};
}

// Query i of equally many queries and keys sees keys [0, i].
AttentionPart causal(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale) {
  static std::atomic<bool> by_cudnn{true};  // until cuDNN refuses: a GPU or a head size without a kernel
  if (q.size(0) >= kCudnnTokens && by_cudnn) {
    const auto heads_first = [](const at::Tensor& x) { return x.transpose(0, 1).unsqueeze(0); };
    try {
      const auto found = at::_scaled_dot_product_cudnn_attention(heads_first(q), heads_first(k), heads_first(v),
                                                                 std::nullopt, true, 0.0, true, false, scale);
      return {std::get<0>(found).squeeze(0).transpose(0, 1), std::get<1>(found).flatten(2).squeeze(0).transpose(0, 1)};
    } catch (const c10::Error&) {
      by_cudnn = false;
    }
  }
  return flash(q, k, v, scale, true);
}

}  // namespace

bool flash_prefill_runs(const AttentionInput& input, const CachedRows& keys, const CachedRows& values) {
  if (!input.q.is_cuda() || input.q.scalar_type() != at::kBFloat16) return false;
  if (!input.sees_all() || input.soft_cap > 0.0 || input.sinks.defined()) return false;
  const std::int64_t d = keys.plain.size(2);
  if (d != values.plain.size(2) || d % 8 != 0 || d > 256) return false;
  const CacheWindows &k = keys.windows, &v = values.windows;
  if (keys.coded.defined() && values.coded.defined() && (k.sink != v.sink || k.recent != v.recent)) return false;
  return (!keys.coded.defined() || (k.flush == 1 && k.recent > 0)) &&
         (!values.coded.defined() || (v.flush == 1 && v.recent > 0));
}

at::Tensor merge_parts(const std::vector<AttentionPart>& parts) {
  if (parts.size() == 1) return parts.front().out.to(at::kFloat);
  at::Tensor out = at::empty(parts.front().out.sizes(), parts.front().out.options().dtype(at::kFloat));
  for (std::int64_t at = 0; at < out.size(0); at += kMergeBlock) {
    const std::int64_t count = std::min(kMergeBlock, out.size(0) - at);
    at::Tensor all = parts.front().lse.narrow(0, at, count);
    for (std::size_t p = 1; p < parts.size(); ++p) all = at::logaddexp(all, parts[p].lse.narrow(0, at, count));
    at::Tensor sum = out.narrow(0, at, count);
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const at::Tensor weight = (parts[p].lse.narrow(0, at, count) - all).exp_().unsqueeze(-1);  // [count, Hq, 1]
      const at::Tensor part = parts[p].out.narrow(0, at, count);
      p == 0 ? at::mul_out(sum, part, weight) : sum.addcmul_(part, weight);
    }
  }
  return out;
}

// With windows of `sink` and `recent` tokens, query i sees codes of [sink, i - recent], and BF16 rows of [0, sink) and
// (i - recent, i]. Counted from the first coded token, and from the first query that sees a code, codes are causal.
at::Tensor attend_flash(const AttentionInput& input, const at::Tensor& q, const CachedRows& keys,
                        const CachedRows& values) {
  const std::int64_t tokens = q.size(0);
  const at::Tensor queries = q.to(at::kBFloat16);
  const at::Tensor k = kernel_rows_of(keys.plain), v = kernel_rows_of(values.plain);
  const bool coded = keys.coded.defined() || values.coded.defined();
  const CacheWindows& w = keys.coded.defined() ? keys.windows : values.windows;
  const std::int64_t near = std::min(coded ? w.sink + w.recent : tokens, tokens), far = tokens - near;
  const AttentionPart first =
      causal(queries.narrow(0, 0, near), k.narrow(0, 0, near), v.narrow(0, 0, near), input.scale);
  if (far == 0) return merge_parts({first});

  const at::Tensor later = queries.narrow(0, near, far);
  std::vector<AttentionPart> parts;
  {
    const at::Tensor coded_k = keys.coded.defined() ? kernel_rows_of(keys.coded) : k,
                     coded_v = values.coded.defined() ? kernel_rows_of(values.coded) : v;
    parts.push_back(causal(later, coded_k.narrow(0, w.sink, far), coded_v.narrow(0, w.sink, far), input.scale));
  }
  const std::int64_t from = w.sink + 1;  // the first key of the first query's recent window
  parts.push_back(flash(later, k.narrow(0, from, tokens - from), v.narrow(0, from, tokens - from), input.scale, true,
                        w.recent - 1));
  if (w.sink > 0) parts.push_back(flash(later, k.narrow(0, 0, w.sink), v.narrow(0, 0, w.sink), input.scale, false));
  at::Tensor out = at::empty(q.sizes(), q.options());
  out.narrow(0, 0, near).copy_(first.out);
  out.narrow(0, near, far).copy_(merge_parts(parts));
  return out;
}

}  // namespace oscar
