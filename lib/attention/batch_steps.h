// The order in which a cache takes a ragged batch: one token of every sequence at a time, because each attends to what
// the cache holds then; without attention, one sequence after another.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "cache/kv_cache.h"
#include "model/attention.h"

namespace oscar {

struct StepToken {
  std::int64_t id = 0;        // of the sequence
  std::int64_t row = 0;       // of the batch's tensors
  std::int64_t position = 0;  // in the sequence
};

// Calls step(tokens) for the first token of every sequence, for the second, ...: of those that have one.
template <class F>
void for_each_step(const SequenceBatch& batch, F&& step) {
  std::vector<StepToken> tokens;
  for (std::int64_t i = 0;; ++i) {
    tokens.clear();
    std::int64_t first = 0;
    for (std::size_t s = 0; s < batch.lengths.size(); first += batch.lengths[s++]) {
      if (i < batch.lengths[s]) tokens.push_back({batch.ids[s], first + i, batch.starts[s] + i});
    }
    if (tokens.empty()) return;
    step(tokens);
  }
}

// BF16 rows of keys or values on the CPU as bits: row i of [T, Hkv, d].
struct RowBits {
  explicit RowBits(const at::Tensor& rows)
      : bits(reinterpret_cast<const std::uint16_t*>(rows.const_data_ptr<at::BFloat16>())),
        width(rows.size(1) * rows.size(2)) {}
  const std::uint16_t* operator[](std::int64_t i) const { return bits + i * width; }

  const std::uint16_t* bits;
  std::int64_t width;
};

// All rows of k and v, [T, Hkv, d] BF16 on the CPU, contiguous, into a cache; pages are coded by several threads.
inline void append_batch(KvCache& cache, std::int64_t layer, const SequenceBatch& batch, const at::Tensor& k,
                         const at::Tensor& v) {
  const RowBits keys(k), values(v);
  std::int64_t row = 0;
  for (std::size_t s = 0; s < batch.lengths.size(); row += batch.lengths[s++]) {
    if (batch.lengths[s] == 0) continue;
    cache.append_rows(layer, batch.ids[s], keys[row], values[row], batch.lengths[s],
                      [](std::int64_t pages, const std::function<void(std::int64_t)>& code) {
                        at::parallel_for(0, pages, 1, [&](std::int64_t begin, std::int64_t end) {
                          for (std::int64_t i = begin; i < end; ++i) code(i);
                        });
                      });
  }
}

}  // namespace oscar
