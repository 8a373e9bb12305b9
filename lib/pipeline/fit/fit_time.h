// How long `oscar-fit --model` takes on this machine, for --dry-run: the phases of collecting (collect_probe.h), and
// those before and after it. Curves count the passes of measure_curves.h, with the exact cache, and the logits that
// each scores; self-generated text counts steps of one token for each row, and the prefills between blocks.
#pragma once

#include <cstdint>
#include <optional>

#include "generate/write_text.h"
#include "pipeline/collect/collect_probe.h"
#include "pipeline/fit/fit_curves.h"
#include "pipeline/fit/held_out.h"

namespace oscar {

// What a run does besides collecting and fitting.
struct FitShape {
  std::int64_t range_tokens = 0;  // of the sequence that collect/reading_range.h tries; 0: none
  DecoderOptions range;           // how those passes run
  std::optional<TextShape> text;  // self-generated
  std::optional<CurvePlan> curves;
  std::optional<HeldOutShape> held_out;
  CacheWindows windows;
  std::size_t measurements = 1;  // of bundles on the held-out text
};

// Loads one layer at a time, and the head.
RunTime fit_time(const Checkpoint& checkpoint, const TokenPlan& plan, const CollectOptions& options,
                 const FitShape& shape);

}  // namespace oscar
