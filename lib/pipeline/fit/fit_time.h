// How long `oscar-fit --model` takes on this machine, for --dry-run. One layer is timed over a few tokens; the phases
// of a run are that time, scaled by the layers, tokens and passes that the run will have. Phases that take no notable
// time are not listed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "collect/collect.h"
#include "generate/write_text.h"
#include "pipeline/fit/fit_curves.h"
#include "pipeline/fit/held_out.h"

namespace oscar {

struct RunTime {
  struct Part {
    std::string name;  // of a phase, as -v reports it (collect/collect_phases.h, fit/fit_phases.h), or options
    double seconds = 0.0;
  };
  std::int64_t probe_tokens = 0;   // of the longer timed run; 0: the shards are absent, so that no layer can be timed
  std::vector<Part> phases;        // in the order of a run
  std::vector<Part> other_ways{};  // options of another whole run, and its time

  double seconds() const;
  std::string text() const;      // lines
  void add_to(Json& out) const;  // "seconds", "seconds_from", "phases" and "other_ways"
};

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

// Loads one layer and the head.
RunTime fit_time(const Checkpoint& checkpoint, const TokenPlan& plan, const CollectOptions& options,
                 const FitShape& shape);

}  // namespace oscar
