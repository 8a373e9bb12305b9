#include "runtime/described_attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>

#include "codec/float16.h"
#include "methods/group_codes.h"
#include "methods/hadamard_rows.h"
#include "runtime/basis.h"
#include "runtime/batch_steps.h"

namespace oscar {

at::Tensor attend_described(DescribedCache& cache, const AttentionInput& input) {
  const SequenceBatch& batch = *input.batch;
  const std::int64_t heads = input.q.size(1), kv_heads = input.k.size(1), d = input.q.size(2);
  const at::Tensor q = input.q.to(at::kCPU, at::kFloat).contiguous();
  const at::Tensor k = cache_rows(input.k, nullptr), v = cache_rows(input.v, nullptr);
  at::Tensor sinks, out = at::empty(q.sizes(), q.options());
  if (input.sinks.defined()) sinks = input.sinks.to(at::kCPU, at::kFloat).contiguous();
  const RowBits keys(k), values(v);
  const float* queries = q.const_data_ptr<float>();
  float* outputs = out.mutable_data_ptr<float>();

  for_each_step(batch, [&](const std::vector<StepToken>& tokens) {
    for (const StepToken& token : tokens) {
      cache.append(input.layer, token.id, keys[token.row], values[token.row]);
    }
    at::parallel_for(0, std::ssize(tokens) * kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const StepToken& token = tokens[static_cast<std::size_t>(i / kv_heads)];
        DescribedQuery query;
        query.query = queries + token.row * heads * d;
        query.query_heads = heads;
        query.softmax_scale = static_cast<float>(input.scale);
        query.soft_cap = static_cast<float>(input.soft_cap);
        query.sliding_window = input.sliding_window;
        query.sink_logits = sinks.defined() ? sinks.const_data_ptr<float>() : nullptr;
        query.output = outputs + token.row * heads * d;
        cache.attend(input.layer, token.id, i % kv_heads, query);
      }
    });
  });
  return out.to(input.q.options());
}

std::int64_t differing_described_rows(const DescribedCache& cache, const MethodDescription& method, std::int64_t layer,
                                      Side which, const at::Tensor& rows, std::int64_t* compared) {
  const SideDescription& side = which == Side::kKey ? method.key : method.value;
  const std::int64_t heads = rows.size(1), d = rows.size(2), width = heads * d;
  const std::int64_t body = side.windows.quantised_end(rows.size(0)) - side.windows.sink;
  if (body <= 0) return 0;
  at::Tensor x = cache_rows(rows, nullptr).to(at::kFloat).narrow(0, side.windows.sink, body).contiguous().clone();
  auto* data = x.mutable_data_ptr<float>();
  if (side.basis == CacheBasis::kHadamard) hadamard_rows(data, body, width, width, hadamard_order_of(side, d));
  std::vector<char> wrong(static_cast<std::size_t>(body * heads), 0);
  for (std::int64_t t = 0; side.token_norm && t < body; ++t) {
    const float norm = group_codes::token_norm(data + t * width, width);
    if (norm != cache.norm(layer, 0, which, t)) std::fill_n(wrong.begin() + t * heads, heads, 1);
    for (std::int64_t i = 0; i < width; ++i) data[t * width + i] /= norm;
  }
  const DescribedPages& pages = cache.pages(which);
  const bool channels = side.axis == CacheAxis::kChannel;
  const int n = pages.group();
  std::vector<float> group(static_cast<std::size_t>(n));
  std::vector<std::uint8_t> codes(group.size()), stored(group.size());
  // Groups of one head: `line` is a channel or a token, `first` the first token or channel of the group.
  const auto check = [&](std::int64_t head, std::int64_t line, std::int64_t first) {
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t token = channels ? first + i : line, channel = channels ? line : first + i;
      group[static_cast<std::size_t>(i)] = data[token * width + head * d + channel];
    }
    const auto params =
        side.code == CacheCode::kIntegerZero
            ? group_codes::encode_integer_zero(group.data(), n, side.bits, static_cast<float>(side.clip), codes.data())
            : group_codes::encode_uniform(group.data(), n, side.bits, codes.data());
    float scale = 0, offset = 0;
    const std::int64_t token = channels ? first : line;
    const std::uint8_t* page = cache.page(layer, 0, which, token, head);
    const std::int64_t in_page = token % kDescribedPageTokens;
    pages.stored_group(page, static_cast<int>(channels ? line : in_page),
                       static_cast<int>((channels ? in_page : first) / n), stored.data(), &scale, &offset);
    if (params.scale == scale && params.offset == offset && codes == stored) return;
    for (std::int64_t i = 0; i < (channels ? n : 1); ++i)
      wrong[static_cast<std::size_t>((token + i) * heads + head)] = 1;
  };
  for (std::int64_t h = 0; h < heads; ++h) {
    for (std::int64_t line = 0; line < (channels ? d : body); ++line) {
      for (std::int64_t first = 0; first + n <= (channels ? body : d); first += n) check(h, line, first);
    }
  }
  *compared += body * heads;
  return std::count(wrong.begin(), wrong.end(), 1);
}

}  // namespace oscar
