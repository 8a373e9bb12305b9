#include "attention/stored_rows.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "attention/begin_step.h"
#include "attention/prefill_core.h"
#include "base/parallel.h"

namespace oscar {
namespace {

constexpr float kReadTolerance = 1e-5f;  // relative to a row's largest magnitude: rounding of inverse transforms

const SideSpec& side_of(const KvCacheSpec& spec, Side side) { return spec.sides[side == Side::kKey ? 0 : 1]; }

// Tokens of one page of a sequence, counted from the first coded token.
struct Run {
  std::int64_t page, first, count;
};

std::vector<Run> runs_of(std::int64_t tokens, std::int64_t each, const PageSample& sample) {
  std::vector<Run> runs;
  for (std::int64_t page = sample.first; page * each < tokens; page += sample.step) {
    runs.push_back({page, page * each, std::min(each, tokens - page * each)});
  }
  return runs;
}

// The tokens of these runs as stored in the windows, one run after another: [tokens, Hkv, d] FP32 on the CPU.
at::Tensor rows_of(const KvMethod& method, const AttentionInput& input, Side side, std::int64_t sink,
                   const std::vector<Run>& runs) {
  SequenceBatch batch;
  std::vector<at::Tensor> keys, values;
  for (const Run& run : runs) {
    batch.ids.push_back(run.page), batch.lengths.push_back(run.count), batch.starts.push_back(sink + run.first);
    keys.push_back(input.k.narrow(0, sink + run.first, run.count));
    values.push_back(input.v.narrow(0, sink + run.first, run.count));
  }
  AttentionInput part = input;
  part.batch = &batch;
  part.k = at::cat(keys), part.v = at::cat(values);
  return new_rows(method, part, side).to(at::kFloat).contiguous();
}

// Contiguous copy; from a GPU through pinned memory, which is kept for reuse.
at::Tensor on_cpu(const at::Tensor& x) {
  if (x.is_cpu()) return x.contiguous();
  at::Tensor copy = at::empty(x.sizes(), at::TensorOptions(x.scalar_type()).pinned_memory(true));
  return copy.copy_(x);
}

bool same_row(const float* read, const float* scored, std::int64_t d) {
  float largest = 0.0f, apart = 0.0f;
  bool finite = true;
  for (std::int64_t i = 0; i < d; ++i) {
    largest = std::max(largest, std::fabs(scored[i]));
    apart = std::max(apart, std::fabs(read[i] - scored[i]));
    finite = finite && std::isfinite(read[i]);
  }
  return finite && apart <= kReadTolerance * largest;
}

}  // namespace

StoredRows compare_stored_rows(const PagedAttention& cache, const KvMethod& method, const KvCacheSpec& spec,
                               const AttentionInput& input, Side side, const PageSample& sample) {
  const StoredPages stored = cache.stored(input.layer, 0, side);
  const SideSpec& of = side_of(spec, side);
  const CachePages& pages = *of.pages[static_cast<std::size_t>(input.layer)];
  const std::vector<Run> runs = runs_of(stored.tokens, pages.tokens(), sample);
  if (runs.empty()) return {};
  const at::Tensor rows = rows_of(method, input, side, of.windows.sink, runs);
  const std::int64_t heads = rows.size(1), row = heads * rows.size(2), each = pages.tokens();
  const auto* values = rows.const_data_ptr<float>();
  std::atomic<std::int64_t> differing{0};
  parallel_ranges(std::ssize(runs) * heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {  // only the last run may be shorter than a page
      const std::int64_t at = i / heads;
      const Run& run = runs[static_cast<std::size_t>(at)];
      differing += pages.differing_rows(stored.pages.data() + run.page * pages.bytes(), static_cast<int>(i % heads),
                                        run.count, values + at * each * row);
    }
  });
  return {rows.size(0) * rows.size(1), differing};
}

StoredRows compare_read_rows(const PagedAttention& cache, const KvMethod& method, const KvCacheSpec& spec,
                             const AttentionInput& input, Side side, const PageSample& sample) {
  const StoredPages stored = cache.stored(input.layer, 0, side);
  // A layer that the bundle leaves out has pages, but no query reads them and the prefill does not score them.
  if (stored.tokens == 0 || !method.quantized_at(input.layer)) return {};
  const SideSpec& of = side_of(spec, side);
  const CachePages& pages = *of.pages[static_cast<std::size_t>(input.layer)];
  const std::vector<Run> runs = runs_of(stored.tokens, pages.tokens(), sample);
  if (runs.empty()) return {};
  const at::Tensor coded = decoded_rows(method, input.layer, side, side == Side::kKey ? input.k : input.v).coded;
  std::vector<at::Tensor> parts;
  for (const Run& run : runs) parts.push_back(coded.narrow(1, of.windows.sink + run.first, run.count));
  const at::Tensor scored = on_cpu(at::cat(parts, 1));  // [Hkv, tokens of the runs, d]
  const std::int64_t heads = scored.size(0), tokens = scored.size(1), d = scored.size(2), each = pages.tokens();
  const auto* values = scored.const_data_ptr<float>();
  std::atomic<std::int64_t> differing{0};
  parallel_ranges(std::ssize(runs) * heads, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<float> read(static_cast<std::size_t>(each * d));
    for (std::int64_t i = begin; i < end; ++i) {  // only the last run may be shorter than a page
      const std::int64_t at = i / heads, head = i % heads;
      const Run& run = runs[static_cast<std::size_t>(at)];
      pages.read_back(stored.pages.data() + run.page * pages.bytes(), static_cast<int>(head),
                      static_cast<int>(run.count), read.data());
      for (std::int64_t t = 0; t < run.count; ++t) {
        const float* expected = values + (head * tokens + at * each + t) * d;
        differing += same_row(read.data() + t * d, expected, d) ? 0 : 1;
      }
    }
  });
  return {tokens * heads, differing};
}

}  // namespace oscar
