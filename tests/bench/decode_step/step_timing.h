// Times a decode step and its parts as CUDA graphs.
#pragma once

#include <optional>

#include "base/json.h"
#include "tests/bench/decode_step/step_model.h"

namespace oscar::bench {

// Milliseconds of one graph replay, the median; nullopt where the attention kernel refuses the shape.
std::optional<double> time_step(DecodeStep& step, int repeats);

// Each part of all layers in a graph of its own, beside what it must take; step_ms: of the whole step.
// {"parts": [{"part", "ms", "least_ms", ..}], "sum_of_parts_ms"}
Json time_parts(DecodeStep& step, const ModelConfig& config, const StepShape& shape, const Rates& rates, int repeats);

// The table of what time_parts() measured, and how far the parts add up to the step.
void print_parts(const Json& parts, const std::string& title, double step_ms, double least_ms);

}  // namespace oscar::bench
