#include "model/attention.h"

#include <ATen/ATen.h>

#include <numeric>
#include <stdexcept>
#include <string>

namespace oscar {

std::int64_t SequenceBatch::tokens() const { return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}); }

at::Tensor with_rope(const at::Tensor& rows, const at::Tensor& rope) {
  return rope.defined() ? at::cat({rows, rope.to(rows.options())}, -1) : rows;
}

AttentionInput with_rope(const AttentionInput& input) {
  AttentionInput wide = input;
  wide.q = with_rope(input.q, input.q_rope);
  wide.k = with_rope(input.k, input.k_rope);
  wide.q_rope = wide.k_rope = at::Tensor();
  return wide;
}

AttentionInput with_tokens(const AttentionInput& input, std::int64_t first, std::int64_t count) {
  AttentionInput part = input;
  for (at::Tensor* x : {&part.k, &part.v, &part.k_rope}) {
    if (x->defined()) *x = x->narrow(0, first, count);
  }
  return part;
}

AttentionInput with_all_queries(const AttentionInput& input) {
  if (!input.asked.defined()) return input;
  AttentionInput all = input;
  all.asked = at::Tensor();
  for (at::Tensor* q : {&all.q, &all.q_rope}) {
    if (!q->defined()) continue;
    const at::Tensor some = *q;
    *q = at::zeros({input.k.size(0), some.size(1), some.size(2)}, some.options());
    q->index_copy_(0, input.asked.to(some.device()), some);
  }
  return all;
}

void require_all_queries(const AttentionInput& input, const char* who) {
  if (input.asked.defined()) throw std::invalid_argument(std::string(who) + " answers the queries of all tokens");
}

at::Tensor AttentionObserver::attend(const AttentionInput& input) {
  at::Tensor output = inner_.attend(input);
  if (input.reader == 0) observe(input, output);
  return output;
}

}  // namespace oscar
