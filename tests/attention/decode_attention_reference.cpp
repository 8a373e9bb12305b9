#include "attention/decode_attention_reference.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "codec/page_params.h"
#include "layout/float16.h"
#include "layout/row_code.h"

namespace oscar {
namespace {

using Vector = std::vector<double>;

// State of one (sequence, query head). Logits are kept, so that the softmax is the textbook one.
struct Head {
  const TieredDecodeParams& p;
  const SequenceView& sequence;
  std::int64_t batch, query_head, kv_head;
  std::int64_t tokens, first_visible;
  const std::vector<ScaleRun>&key_runs, &value_runs;

  const float* query() const { return p.query + (batch * p.query_heads + query_head) * p.head_dim; }
  const std::uint8_t* page(std::int64_t body_token) const {
    const std::int64_t id = sequence.page_table[body_token / kPageTokens];
    return p.pages + (id * p.kv_heads + kv_head) * p.page.bytes();
  }
  const std::uint16_t* row(const std::uint16_t* base, const WindowTier& tier, std::int64_t i) const {
    return base + ((tier.first + i) % tier.capacity * p.kv_heads + kv_head) * p.head_dim;
  }
  const float* sigma(const float* of_heads) const { return of_heads != nullptr ? of_heads + kv_head * 4 : nullptr; }
  double logit(double dot) const {
    double x = p.softmax_scale * dot;
    if (p.logit_shift != nullptr) x += p.logit_shift[batch * p.query_heads + query_head];
    return p.soft_cap > 0.0f ? p.soft_cap * std::tanh(x / p.soft_cap) : x;
  }
};

int code_at(const std::uint8_t* page, const PlaneLayout& plane, std::int32_t bit) {
  return (page[plane.offset + bit / 8] >> (bit % 8)) & ((1 << plane.width) - 1);
}

double bfloat16_dot(const float* q, const std::uint16_t* k, int d) {
  double dot = 0.0;
  for (int i = 0; i < d; ++i) dot += static_cast<double>(q[i]) * bfloat16_value(k[i]);
  return dot;
}

double key_dot(const Head& head, std::int64_t body_token) {
  const SideLayout& side = head.p.page.key;
  const std::uint8_t* page = head.page(body_token);
  const int token = static_cast<int>(body_token % kPageTokens);
  const float* q = head.query();
  double dot = 0.0;
  for (int g = 0; g < side.quant_groups; ++g) {
    const ScaleRun& run = head.key_runs[static_cast<std::size_t>(g)];
    const PlaneLayout& plane = side.plane[run.plane];
    const LevelScale param = read_param(side, page, token, g, head.sigma(head.p.key_sigma));
    double levels = 0.0, sum = 0.0;
    for (int i = run.first_channel; i < run.first_channel + run.channels; ++i) {
      const int code = code_at(page, plane, plane.key_bit(token, i - plane.first_channel));
      levels += static_cast<double>(q[i]) * (code + static_cast<double>(level_offset(side, plane.width)));
      sum += q[i];
    }
    dot += param.scale * (levels - param.zero * sum);
  }
  return dot;
}

void add_value(const Head& head, std::int64_t body_token, double weight, Vector& output) {
  const SideLayout& side = head.p.page.value;
  const std::uint8_t* page = head.page(body_token);
  const int token = static_cast<int>(body_token % kPageTokens);
  for (int g = 0; g < side.quant_groups; ++g) {
    const ScaleRun& run = head.value_runs[static_cast<std::size_t>(g)];
    const PlaneLayout& plane = side.plane[run.plane];
    const LevelScale param = read_param(side, page, token, g, head.sigma(head.p.value_sigma));
    const double w = weight * param.scale;
    for (int i = run.first_channel; i < run.first_channel + run.channels; ++i) {
      const int code = code_at(page, plane, plane.value_bit(token, i - plane.first_channel));
      const double level = code + static_cast<double>(level_offset(side, plane.width));
      output[static_cast<std::size_t>(i)] += w * level - w * param.zero;
    }
  }
}

void attend_head(const Head& head) {
  const TieredDecodeParams& p = head.p;
  const SequenceView& s = head.sequence;
  const std::int64_t sink = s.sink.tokens, body = s.body_tokens;
  Vector logits(static_cast<std::size_t>(head.tokens), -INFINITY), output(static_cast<std::size_t>(p.head_dim), 0.0);
  double largest = p.sink_logits != nullptr ? p.sink_logits[head.query_head] : -INFINITY;
  for (std::int64_t j = head.first_visible; j < head.tokens; ++j) {
    double dot = 0.0;
    if (j < sink) {
      dot = bfloat16_dot(head.query(), head.row(s.sink.key, s.sink, j), p.head_dim);
    } else if (j < sink + body) {
      dot = key_dot(head, j - sink);
    } else {
      dot = bfloat16_dot(head.query(), head.row(s.recent.key, s.recent, j - sink - body), p.head_dim);
    }
    logits[static_cast<std::size_t>(j)] = head.logit(dot);
    largest = std::max(largest, logits[static_cast<std::size_t>(j)]);
  }
  double total = p.sink_logits != nullptr ? std::exp(p.sink_logits[head.query_head] - largest) : 0.0;
  for (double& x : logits) total += x = std::exp(x - largest);
  for (std::int64_t j = head.first_visible; j < head.tokens; ++j) {
    const double weight = logits[static_cast<std::size_t>(j)] / total;
    if (j >= sink && j < sink + body) {
      add_value(head, j - sink, weight, output);
      continue;
    }
    const std::uint16_t* v =
        j < sink ? head.row(s.sink.value, s.sink, j) : head.row(s.recent.value, s.recent, j - sink - body);
    for (int i = 0; i < p.head_dim; ++i) output[static_cast<std::size_t>(i)] += weight * bfloat16_value(v[i]);
  }
  float* out = p.output + (head.batch * p.query_heads + head.query_head) * p.head_dim;
  for (int i = 0; i < p.head_dim; ++i) out[i] = static_cast<float>(output[static_cast<std::size_t>(i)]);
  if (p.weight_sum == nullptr) return;
  double seen = 0.0;
  for (const double x : logits) seen += x;
  p.weight_sum[head.batch * p.query_heads + head.query_head] = total > 0.0 ? static_cast<float>(seen / total) : 0.0f;
}

}  // namespace

void decode_attention_reference(const TieredDecodeParams& p) {
  const std::int64_t gqa_group = p.query_heads / p.kv_heads;
  const std::vector<ScaleRun> key_runs = scale_runs(p.page.key), value_runs = scale_runs(p.page.value);
  for (std::int64_t b = 0; b < p.batch; ++b) {
    const SequenceView& s = p.sequences[b];
    const std::int64_t tokens = std::int64_t{s.sink.tokens} + s.body_tokens + s.recent.tokens;
    const std::int64_t first = p.first_token(tokens);
    for (std::int64_t h = 0; h < p.query_heads; ++h)
      attend_head({p, s, b, h, h / gqa_group, tokens, first, key_runs, value_runs});
  }
}

}  // namespace oscar
