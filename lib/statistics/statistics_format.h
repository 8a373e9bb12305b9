// Names and bounds of the statistics file that its writer and reader share.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "checkpoint/safetensors.h"
#include "statistics/statistics.h"

namespace oscar {

inline constexpr const char* kStatisticsFormat = "oscar-statistics";

// Bounds on sizes that a file may state, far above any model.
inline constexpr std::int64_t kMaxLayers = 4096;
inline constexpr std::int64_t kMaxHeads = 4096;
inline constexpr std::int64_t kMaxHeadDim = 4096;
inline constexpr std::int64_t kMaxHidden = std::int64_t{1} << 24;
inline constexpr std::int64_t kMaxTokens = std::int64_t{1} << 50;
inline constexpr std::int64_t kMaxShards = 100000;

std::string shape_text(at::IntArrayRef shape);  // "[2, 128, 128]"

// As load_part(), for an open file.
Statistics read_statistics(const SafetensorsFile& file);

// The JSON of the file: first the facts of the struct, then the rest of `metadata`.
Json statistics_metadata(const Statistics& statistics);

}  // namespace oscar
