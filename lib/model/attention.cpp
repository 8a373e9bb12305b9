#include "model/attention.h"

#include <ATen/ATen.h>

#include <numeric>
#include <stdexcept>
#include <string>

namespace oscar {

std::int64_t SequenceBatch::tokens() const { return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}); }

AttentionInput with_all_queries(const AttentionInput& input) {
  if (!input.asked.defined()) return input;
  AttentionInput all = input;
  all.asked = at::Tensor();
  all.q = at::zeros({input.k.size(0), input.q.size(1), input.q.size(2)}, input.q.options());
  all.q.index_copy_(0, input.asked.to(input.q.device()), input.q);
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
