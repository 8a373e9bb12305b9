#include "verify/cache_check.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "runtime/basis.h"
#include "runtime/described_attention.h"
#include "runtime/page_codec.h"

namespace oscar {
namespace {

constexpr std::int64_t kQueries = 8;  // read back with full attention

AttentionInput slice(const AttentionInput& input, const SequenceBatch& batch, std::int64_t begin, std::int64_t count) {
  AttentionInput part = input;
  part.batch = &batch;
  part.q = input.q.narrow(0, begin, count);
  part.k = input.k.narrow(0, begin, count);
  part.v = input.v.narrow(0, begin, count);
  return part;
}

// Body rows of one side of one layer whose bytes differ from those of the reference encoder.
std::int64_t differing_rows(const KvMethod& method, const StoredPages& stored, std::int64_t layer, Side side,
                            const at::Tensor& tokens) {
  const SideTransform* transform = method.transform(layer, side);
  at::Tensor phases;
  if (transform != nullptr && transform->rotated_mean) phases = method.phases->rows(0, tokens.size(0));
  const at::Tensor rows = cache_rows(tokens, transform, phases).to(at::kFloat).contiguous();
  const std::int64_t heads = rows.size(1), d = rows.size(2);
  const SidePages pages(side == Side::kKey ? stored.layout.key : stored.layout.value, side);
  const RowCode& code = method.code(layer, side);
  const auto param_bytes = static_cast<std::size_t>(code.param_bytes());
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(d)), params(param_bytes);
  std::vector<std::uint8_t> expected_codes(codes.size()), expected_params(params.size());
  std::int64_t differing = 0;
  for (std::int64_t h = 0; h < heads; ++h) {
    const RowCodec codec = method.codec(layer, side, h);
    for (std::int32_t t = 0; t < stored.tokens; ++t) {
      const float* row = rows.const_data_ptr<float>() + ((method.windows.sink + t) * heads + h) * d;
      encode_rows(codec, row, 1, 0, expected_codes.data(), expected_params.data());
      const std::uint8_t* page = stored.pages.data() + (t / kPageTokens * heads + h) * stored.layout.bytes();
      pages.read(page, t % kPageTokens, codes.data(), params.data());
      differing += codes != expected_codes || params != expected_params ? 1 : 0;
    }
  }
  return differing;
}

}  // namespace

CacheChecker::CacheChecker(const KvMethod& method, const ModelConfig& model, at::Device device)
    : method_(method), paged_(method, model, device) {}

void CacheChecker::check_layer(const AttentionInput& input, const at::Tensor& prefill) {
  const std::int64_t tokens = input.k.size(0), tail = std::min(kQueries, tokens), body = tokens - tail;
  if (body > 0) {
    const SequenceBatch batch{{0}, {body}, {0}};
    paged_.append(slice(input, batch, 0, body));
  }
  const SequenceBatch batch{{0}, {tail}, {body}};
  const at::Tensor decoded = paged_.attend(slice(input, batch, body, tail)).to(at::kCPU, at::kDouble);
  const at::Tensor expected = prefill.narrow(0, body, tail).to(at::kCPU, at::kDouble);
  const double norm = expected.norm().item<double>();
  const double error = (decoded - expected).norm().item<double>();
  check_.reader_error = std::max(check_.reader_error, norm > 0 ? error / norm : error);

  if (const DescribedCache* cache = paged_.described()) {
    const MethodDescription& description = method_.engine->description();
    for (const Side side : {Side::kKey, Side::kValue}) {
      const at::Tensor& rows = side == Side::kKey ? input.k : input.v;
      check_.differing += differing_described_rows(*cache, description, input.layer, side, rows, &check_.rows);
    }
    return;
  }
  if (method_.quantised) {
    const StoredPages stored = paged_.stored(input.layer, 0);
    check_.differing += differing_rows(method_, stored, input.layer, Side::kKey, input.k);
    check_.differing += differing_rows(method_, stored, input.layer, Side::kValue, input.v);
    check_.rows += 2 * stored.tokens * input.k.size(1);
  }
}

CacheCheck CacheChecker::result() const {
  CacheCheck check = check_;
  check.allocated_bytes = paged_.allocated_bytes();
  return check;
}

}  // namespace oscar
