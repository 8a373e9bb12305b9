// oscar-fit --tune: opens the model and the held-out text, tunes, and prints what was found.
#pragma once

#include <string>
#include <vector>

#include "apps/common_options.h"
#include "bundle/bundle.h"
#include "rotation/fit.h"

namespace oscar {

struct TuneArguments {
  std::string text;  // empty: no tuning
  std::int64_t context = 2048, sequences = 3, prompts = 8;
  bool stream_layers = false;  // keep one layer's weights in memory
  std::vector<Windows> window_choices;
};

struct Tuned {
  FitOptions options;  // that won
  Windows windows;     // that won
  Json record;         // for the bundle's provenance: text, sensitivities, scores on the third split
};

// The model runs on base.device. UsageError without a model, InputError where the text was part of the calibration set
// or the statistics are of another model. Trials go to "OUTPUT.tune.json", which stays as the record of the run.
Tuned tune_options(const Statistics& statistics, const FitOptions& base, const Windows& windows,
                   const CommonOptions& common, const TuneArguments& arguments);

}  // namespace oscar
