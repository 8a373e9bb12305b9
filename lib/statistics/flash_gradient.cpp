#include "statistics/flash_gradient.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

namespace oscar {
namespace {

// Where packed sequences begin and end, as the kernels want it.
struct Ends {
  at::Tensor offsets;  // [sequences + 1] int32 on the device
  std::int64_t longest = 0, tokens = 0;
};

Ends ends_of(const std::vector<std::int64_t>& lengths, at::Device device) {
  Ends ends;
  std::vector<std::int32_t> offsets{0};
  for (const std::int64_t length : lengths) {
    ends.longest = std::max(ends.longest, length);
    ends.tokens += length;
    offsets.push_back(static_cast<std::int32_t>(ends.tokens));
  }
  ends.offsets = at::tensor(at::ArrayRef<std::int32_t>(offsets), at::kInt).to(device);
  return ends;
}

// Of kernels that are not causal by themselves: keys behind a query that it sees.
struct Reach {
  bool causal = true;
  std::optional<std::int64_t> left, right;
};

Reach reach_of(std::int64_t window) {
  return window > 0 ? Reach{false, window - 1, 0} : Reach{true, std::nullopt, std::nullopt};
}

// Sums of the gradients of queries are added up by atomic operations unless ATen is told not to.
class SameBits {
 public:
  SameBits() : before_(at::globalContext().deterministicAlgorithms()) {
    at::globalContext().setDeterministicAlgorithms(true, warn_);
  }
  ~SameBits() { at::globalContext().setDeterministicAlgorithms(before_, warn_); }
  SameBits(const SameBits&) = delete;
  SameBits& operator=(const SameBits&) = delete;

 private:
  bool before_, warn_ = at::globalContext().deterministicAlgorithmsWarnOnly();
};

struct Slopes {
  at::Tensor q, k, v;
};

Slopes backward(const AttentionInput& input, const at::Tensor& k, const at::Tensor& v, const Ends& queries,
                const Ends& keys, const FlashOutput& output, const at::Tensor& gradient, const Reach& reach) {
  const SameBits same;
  const at::Tensor unused = at::empty({}, gradient.options().dtype(at::kLong));
  auto [dq, dk, dv] = at::_flash_attention_backward(gradient, input.q, k, v, output.out, output.lse, queries.offsets,
                                                    keys.offsets, queries.longest, keys.longest, 0.0, reach.causal,
                                                    unused, unused, input.scale, reach.left, reach.right);
  return {dq, dk, dv};
}

// Keys that far pairs have: of each sequence all but the last `recent` ones.
struct FarKeys {
  std::vector<std::int64_t> lengths;   // 0: none
  std::vector<std::int64_t> rows;      // of all keys: those that are left
  std::vector<std::int64_t> to, from;  // behind the sink: rows of all keys, and where they are among those left
};

FarKeys far_keys(const std::vector<std::int64_t>& lengths, const FarPairs& pairs) {
  FarKeys far;
  std::int64_t first = 0;
  for (const std::int64_t length : lengths) {
    far.lengths.push_back(std::max<std::int64_t>(length - pairs.recent, 0));
    for (std::int64_t j = 0; j < far.lengths.back(); ++j) {
      if (j >= pairs.sink) {
        far.to.push_back(first + j);
        far.from.push_back(std::ssize(far.rows));
      }
      far.rows.push_back(first + j);
    }
    first += length;
  }
  return far;
}

// Pairs with j <= i - recent: what they give to queries and, into `out`, to keys and values. undefined: there are none.
at::Tensor far_slopes(const AttentionInput& input, const Ends& queries, const FlashOutput& output,
                      const at::Tensor& gradient, const FarPairs& pairs, AttentionGradient& out) {
  const std::int64_t window = input.sliding_window;
  const FarKeys far = far_keys(input.batch->lengths, pairs);
  if (far.rows.empty() || (window > 0 && window <= pairs.recent)) return {};
  const auto on_device = [&](const std::vector<std::int64_t>& x) {
    return at::tensor(at::ArrayRef<std::int64_t>(x), at::kLong).to(input.k.device());
  };
  const at::Tensor rows = on_device(far.rows);
  const Slopes found = backward(input, input.k.index_select(0, rows), input.v.index_select(0, rows), queries,
                                ends_of(far.lengths, input.k.device()), output, gradient,
                                reach_of(window > 0 ? window - pairs.recent : 0));
  const at::Tensor k = found.k.to(at::kFloat), v = found.v.to(at::kFloat);
  out.k.index_add_(0, rows, k);
  out.v.index_add_(0, rows, v);
  if (!far.to.empty()) {
    const at::Tensor to = on_device(far.to), from = on_device(far.from);
    out.far_k.index_copy_(0, to, k.index_select(0, from));
    out.far_v.index_copy_(0, to, v.index_select(0, from));
  }
  return found.q;
}

}  // namespace

bool flash_gradient_runs(const AttentionInput& input, const FarPairs& pairs) {
  const std::int64_t d = input.q.size(2);
  return pairs.recent > 0 && input.q.is_cuda() && input.q.scalar_type() == at::kBFloat16 && input.chunk == 0 &&
         input.soft_cap == 0.0 && !input.sinks.defined() && d == input.k.size(2) && d == input.v.size(2) &&
         d % 8 == 0 && d <= 256;
}

FlashOutput flash_output(const AttentionInput& input) {
  const Ends ends = ends_of(input.batch->lengths, input.q.device());
  const Reach reach = reach_of(input.sliding_window);
  auto [out, lse, seed, offset, mask] =
      at::_flash_attention_forward(input.q, input.k, input.v, ends.offsets, ends.offsets, ends.longest, ends.longest,
                                   0.0, reach.causal, false, input.scale, reach.left, reach.right);
  return {out, lse};
}

AttentionGradient flash_gradient(const AttentionInput& input, const FlashOutput& output, const at::Tensor& gradient,
                                 const FarPairs& pairs, bool queries) {
  const Ends ends = ends_of(input.batch->lengths, input.q.device());
  const at::Tensor g = gradient.to(at::kBFloat16).contiguous();
  const std::int64_t window = input.sliding_window;
  const Slopes near = backward(input, input.k, input.v, ends, ends, output, g,
                               reach_of(window > 0 ? std::min(window, pairs.recent) : pairs.recent));
  AttentionGradient out{near.q, near.k.to(at::kFloat), near.v.to(at::kFloat), {}, {}};
  out.far_k = at::zeros_like(out.k), out.far_v = at::zeros_like(out.v);
  const at::Tensor far_q = far_slopes(input, ends, output, g, pairs, out);
  if (queries && far_q.defined()) out.q = near.q + far_q;
  return out;
}

}  // namespace oscar
