// Measures the curves of a model (bundle/curves.h) in rounds of profiles for every side. Each round is chosen from the
// results of earlier rounds (choose_profiles.h). With a work directory every finished batch is kept. A killed run
// continues after the last batch, with the same result to the last byte.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/run_directory.h"
#include "base/timeline.h"
#include "bundle/bundle.h"
#include "bundle/curves.h"
#include "curves/choose_profiles.h"
#include "distributed/ranks.h"
#include "model/decoder.h"

namespace oscar {

struct CurveRequest {
  std::vector<std::vector<std::int32_t>> sequences;  // of calibration text, of equal length
  CacheWindows windows;
  std::vector<double> budgets;  // bits: the analytic and the measured widths of each are measured end to end
  // In place of budgets: end-to-end KL is measured until the smallest budget of this KL is known
  // (bundle/target_budget.h).
  std::optional<double> target_kl;
  std::int64_t profiles = static_cast<std::int64_t>(ChoiceOptions{}.most);  // most that are measured of a side
  bool one = false;                                                         // CurvePasses::measure()
  fs::path work_dir;           // where the state of the run is kept; empty: nowhere
  bool resume = false;         // go on with the run in work_dir
  std::string resume_command;  // for the message of an interrupted run
  std::string tool_version;
  Timeline* timeline = nullptr;  // gets the phases of CurvePasses; null: nothing is measured
  Ranks* ranks = nullptr;        // that share sides and budgets; all get the result. Each has a folder in work_dir
};

inline constexpr std::int64_t kTargetBudgets = 3;  // of a target: the most that it is expected to measure

// The analytic cost of every profile of falling_profiles(): [layers][35].
struct ProfilePredictions {
  std::vector<std::vector<double>> key, value;
};

struct MeasuredCurves {
  Curves curves;
  std::unique_ptr<RunDirectory> state;  // work directory, to be removed once the curves are saved; null: none
};

// facts: the fields of Curves that describe the measurement (fingerprint, statistics, options, text); the others are
// filled here. bundle: transforms of all layers; its widths are not used. EnvironmentError if the GPU or the machine
// has too little memory; UsageError and InputError as RunDirectory; InterruptedError, which says how to continue.
MeasuredCurves measure_curves(Curves facts, const Bundle& bundle, const ProfilePredictions& predictions,
                              Decoder& decoder, const CurveRequest& request);

// The largest number of passes of one sequence through one layer in a run, which its progress counts.
std::uint64_t most_curve_passes(const ModelConfig& model, std::int64_t sequences, std::int64_t budgets,
                                std::int64_t profiles, bool one);

}  // namespace oscar
