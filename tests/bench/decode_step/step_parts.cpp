#include "tests/bench/decode_step/step_parts.h"

#include <algorithm>

#include "kernels/common/fragment_pages.h"

namespace oscar::bench {

std::string to_string(StepPart part) {
  switch (part) {
    case StepPart::kEmbedding:
      return "embedding";
    case StepPart::kQuantize:
      return "quantizing what leaves the windows";
    case StepPart::kNorms:
      return "norms";
    case StepPart::kQkv:
      return "projection QKV";
    case StepPart::kAppend:
      return "append and rotation";
    case StepPart::kAttention:
      return "attention";
    case StepPart::kOutput:
      return "projection O, residual";
    case StepPart::kGateUp:
      return "projections gate and up";
    case StepPart::kGate:
      return "SiLU";
    case StepPart::kDown:
      return "projection down, residual";
    case StepPart::kHead:
      return "head";
    case StepPart::kArgmax:
      return "argmax";
  }
  return {};
}

bool fused_for_one(StepPart part) {
  return part == StepPart::kNorms || part == StepPart::kGate || part == StepPart::kArgmax;
}

std::int64_t window_pages_for(std::int64_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; }
std::int64_t ring_pages_of(const CacheWindows& w) { return window_pages_for(w.recent + w.flush - 1 + 15); }

std::uint64_t cache_bytes(const ModelConfig& c, bool int2, const CacheWindows& w, std::int64_t context) {
  const auto heads = static_cast<std::uint64_t>(c.layers * c.kv_heads);
  const int d = static_cast<int>(c.head_dim);
  if (!int2) return heads * static_cast<std::uint64_t>(context) * 4 * static_cast<std::uint64_t>(d);
  const std::int64_t body = std::max<std::int64_t>(window_pages_for(w.quantized_end(context) - w.sink), 1);
  const std::int64_t windows = window_pages_for(w.sink) + ring_pages_of(w);
  return heads * (static_cast<std::uint64_t>(body * kernels::CodePage{d}.bytes()) +
                  static_cast<std::uint64_t>(windows * kernels::window_page_bytes(d)));
}

std::uint64_t read_bytes(const ModelConfig& c, bool int2, const CacheWindows& w, std::int64_t context) {
  if (!int2) return cache_bytes(c, false, w, context);
  const std::int64_t body = w.quantized_end(context) - w.sink;
  const int d = static_cast<int>(c.head_dim);
  return static_cast<std::uint64_t>(c.layers * c.kv_heads) *
         static_cast<std::uint64_t>(body * kernels::CodePage{d}.bytes() / kPageTokens + (context - body) * 4 * d);
}

namespace {

// `count` products of all rows with a BF16 matrix of so many elements.
PartCost product(std::int64_t count, std::int64_t elements, std::int64_t batch) {
  const double n = static_cast<double>(count) * static_cast<double>(elements);
  return {.weight_bytes = 2 * n, .operations = 2 * n * static_cast<double>(batch)};
}

// BF16 numbers of each row that are read or written.
PartCost activations(std::int64_t numbers, std::int64_t batch) {
  return {.activation_bytes = 2 * static_cast<double>(numbers) * static_cast<double>(batch)};
}

}  // namespace

PartCost part_cost(const ModelConfig& c, StepPart part, const StepShape& s) {
  const std::int64_t q = c.query_heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  switch (part) {
    case StepPart::kEmbedding:
      return activations(2 * c.hidden, s.batch);
    case StepPart::kQuantize:  // BF16 rows to codes and two parameters a head and side
      return s.int2 ? activations(c.layers * (2 * kv + 2 * kv / 8 + 4 * c.kv_heads), s.batch) : PartCost{};
    case StepPart::kNorms:
      return activations((2 * c.layers + 1) * 2 * c.hidden, s.batch);
    case StepPart::kQkv:
      return product(c.layers, (q + 2 * kv) * c.hidden, s.batch);
    case StepPart::kAppend:
      return activations(c.layers * 2 * (q + 2 * kv), s.batch);
    case StepPart::kAttention:
      return {.cache_bytes =
                  static_cast<double>(s.batch) * static_cast<double>(read_bytes(c, s.int2, s.windows, s.context))};
    case StepPart::kOutput:
      return product(c.layers, q * c.hidden, s.batch);
    case StepPart::kGateUp:
      return product(c.layers, 2 * c.intermediate * c.hidden, s.batch);
    case StepPart::kGate:
      return activations(c.layers * 3 * c.intermediate, s.batch);
    case StepPart::kDown:
      return product(c.layers, c.intermediate * c.hidden, s.batch);
    case StepPart::kHead:
      return product(1, c.vocabulary * c.hidden, s.batch);
    case StepPart::kArgmax:
      return activations(c.vocabulary, s.batch);
  }
  return {};
}

double least_ms(const PartCost& cost, const Rates& rates) {
  return 1e3 * std::max((cost.weight_bytes + cost.cache_bytes) / rates.bytes, cost.operations / rates.operations);
}

double least_ms_of_step(const ModelConfig& c, const StepShape& shape, const Rates& rates) {
  double ms = 0;
  for (const StepPart part : kStepParts) ms += least_ms(part_cost(c, part, shape), rates);
  return ms;
}

}  // namespace oscar::bench
