#include "model/attention.h"

#include <numeric>

namespace oscar {

std::int64_t SequenceBatch::tokens() const { return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}); }

at::Tensor AttentionObserver::attend(const AttentionInput& input) {
  at::Tensor output = inner_.attend(input);
  observe(input, output);
  return output;
}

}  // namespace oscar
