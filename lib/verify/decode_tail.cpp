#include "verify/decode_tail.h"

#include <ATen/ATen.h>

#include "verify/forward.h"

namespace oscar {

at::Tensor CacheFiller::attend(const AttentionInput& input) {
  if (tokens_ > 0) {
    const SequenceBatch batch{{0}, {tokens_}, {0}};
    AttentionInput part = input;
    part.batch = &batch;
    part.k = input.k.narrow(0, 0, tokens_), part.v = input.v.narrow(0, 0, tokens_);
    cache_.append(part);
  }
  return inner_.attend(input);
}

bool can_fill_cache(const ModelConfig& model) {
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    if (model.is_linear(layer) || model.is_local(layer)) return false;
  }
  return true;
}

at::Tensor decode_tail(Decoder& decoder, const std::vector<std::int32_t>& ids, std::int64_t from, PagedAttention& cache,
                       const std::function<void(std::int64_t)>& progress) {
  std::vector<at::Tensor> rows;
  for (std::int64_t t = from; t < std::ssize(ids); ++t) {
    stop_if_interrupted();
    rows.push_back(decoder.forward({ids[static_cast<std::size_t>(t)]}, {{0}, {1}, {t}}, cache));
    progress(1);
  }
  cache.release(0);
  return at::cat(rows);
}

}  // namespace oscar
