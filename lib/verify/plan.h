// Which method, context and batch fit in memory. Uses only the model's geometry and reads no weights.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/model_config.h"
#include "layout/cache_windows.h"

namespace oscar {

struct PlanCell {
  std::int64_t context = 0;
  double bits = 0;                   // per element, including windows
  std::uint64_t sequence_bytes = 0;  // per sequence, all layers
  std::int64_t batch = 0;            // sequences that fit beside the weights
};

struct PlanRow {
  std::string id;
  std::vector<PlanCell> cells;       // [contexts]
  std::int64_t longest_context = 0;  // for one sequence, at most the model's maximum
};

// A method that this model's heads or RoPE do not support.
struct PlanGap {
  std::string id, reason;
};

struct MemoryPlan {
  std::uint64_t memory = 0, weights = 0;
  std::vector<std::int64_t> contexts;
  std::vector<PlanRow> rows;  // by ascending bytes at the longest context
  std::vector<PlanGap> do_not_fit;
};

// "24GiB", "80GB", "500000000". UsageError otherwise.
std::uint64_t parse_memory(const std::string& text);

// contexts: if empty, 4K, 16K, 64K and so on up to the model's maximum. UsageError if the memory cannot hold the
// weights, or for a context beyond the maximum. Methods with a bundle use the common windows, and those that allocate
// bits have `bits` per element.
MemoryPlan plan_memory(const ModelConfig& model, std::uint64_t memory, std::uint64_t weights,
                       std::vector<std::int64_t> contexts, const CacheWindows& windows, double bits);

std::string plan_table(const MemoryPlan& plan);
std::string plan_json(const MemoryPlan& plan);

}  // namespace oscar
