// The parts of a decode step, and what each must read and multiply.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "layout/cache_windows.h"
#include "model/decoder.h"

namespace oscar::bench {

enum class StepPart {
  kEmbedding,
  kQuantize,  // the tokens that leave the windows; with a BF16 cache nothing
  kNorms,
  kQkv,
  kAppend,  // norm and RoPE of queries and keys, rotation, new rows into the cache
  kAttention,
  kOutput,
  kGateUp,
  kGate,  // SiLU
  kDown,
  kHead,
  kArgmax,
};
inline constexpr std::array<StepPart, 12> kStepParts{StepPart::kEmbedding, StepPart::kQuantize, StepPart::kNorms,
                                                     StepPart::kQkv,       StepPart::kAppend,   StepPart::kAttention,
                                                     StepPart::kOutput,    StepPart::kGateUp,   StepPart::kGate,
                                                     StepPart::kDown,      StepPart::kHead,     StepPart::kArgmax};
std::string to_string(StepPart part);

// One sequence takes matrix-vector products with the norm before them and the gate, residual or argmax behind: parts of
// their own only for a batch.
bool fused_for_one(StepPart part);

struct StepShape {
  bool int2 = false;
  std::int64_t batch = 1, context = 1;
  CacheWindows windows;
};

// Bytes that must come from memory, and operations of matrix products, for a whole step.
struct PartCost {
  double weight_bytes = 0, cache_bytes = 0;
  double activation_bytes = 0;  // read and written by what is no matrix product; they may stay in the L2 cache
  double operations = 0;
};
PartCost part_cost(const ModelConfig& config, StepPart part, const StepShape& shape);

// Bytes of the cache of one sequence of `context` tokens, as DecodeStep allocates it, and as a step reads it.
std::uint64_t cache_bytes(const ModelConfig& config, bool int2, const CacheWindows& windows, std::int64_t context);
std::uint64_t read_bytes(const ModelConfig& config, bool int2, const CacheWindows& windows, std::int64_t context);
std::int64_t window_pages_for(std::int64_t tokens);
std::int64_t ring_pages_of(const CacheWindows& windows);

// What a GPU does at best.
struct Rates {
  double bytes = 4.5e12;       // read from memory in a second
  double operations = 790e12;  // of a dense BF16 product in a second
};
// Milliseconds: the longer of bytes and operations. Activations do not count.
double least_ms(const PartCost& cost, const Rates& rates);
double least_ms_of_step(const ModelConfig& config, const StepShape& shape, const Rates& rates);

}  // namespace oscar::bench
