// The fit: statistics of a model -> a transform and clip ratios for each layer, with what they are predicted to do.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "codec/codec.h"
#include "moments/statistics.h"
#include "rotation/clip_search.h"
#include "rotation/profile_allocation.h"
#include "rotation/side_moments.h"
#include "rotation/targets.h"
#include "rotation/transform.h"
#include "rotation/transform_check.h"

namespace oscar {

enum class ClipMode { kSearch, kFixed, kNone };
// Keys and values stored as they are, keys without the mean of each head (what format sglang-v3 can carry), both, or
// keys without the mean of keys before RoPE, rotated to their position, and values without theirs.
enum class Center { kNone, kKey, kMean, kRope };

struct FitOptions {
  std::string method = "oscar";  // transforms.h
  Scope scope = Scope::kLayer;
  ValueTarget value_target = ValueTarget::kExact;
  ClipMode clip = ClipMode::kSearch;
  float key_clip = 0.0f, value_clip = 0.0f;  // kFixed
  std::int64_t group = 0;                    // quantisation group; 0: whole head
  std::int64_t sink = 64;                    // positions below are never quantised, so their rows do not count
  std::int64_t recent = 256;                 // the last tokens of a context are never quantised
  // Keys of balanced and waterfill are fitted to the positions of a context of this many tokens; 0: to those of the
  // calibration prompts.
  std::int64_t context = 0;
  bool one_clip = false;        // one ratio a side for the whole model, as published formats carry; kSearch
  std::int64_t max_rows = 512;  // sampled tokens used, both halves together
  Encoder encoder = Encoder::kMinMax;
  at::Device device = at::kCPU;  // of the eigensolver; the search runs on the CPU
  Center center = Center::kNone;
  // Methods balanced and waterfill.
  MetricSource metric = MetricSource::kAuto;
  double damping = 1e-3;                               // of the diagonals
  double exponent = 1.0;                               // 0: orthogonal, 1: fully balanced
  std::vector<Widths> key_profiles, value_profiles;    // waterfill: [L] widths chosen elsewhere (measured curves)
  double bits = 2.25;                                  // waterfill: budget of each element, parameters included
  std::vector<std::uint8_t> key_widths, value_widths;  // balanced: [4] for layout blocks, the same in all layers
  std::function<void()> on_step;                       // progress, fit_steps() times; called from one thread at a time
};

// Errors of one side of one layer on the held-out rows, in the metric that also chose the clip (metric_scorer of
// head_scorer.h, summed over heads): relative to the rows' own energy in it, and for the last two as they weigh against
// other layers (SideCosts of predict.h), which only statistics with far pairs can tell.
struct SidePrediction {
  double identity = 0.0;        // no rotation, no clip
  double hadamard = 0.0;        // Hadamard matrix, no clip
  double unclipped = 0.0;       // the fit without its clip
  double fit = 0.0;             // the fit
  double error = 0.0;           // the fit, share of the residual stream's energy; sums over layers mean something
  double one_clip_error = 0.0;  // the same with the one clip of the model in place of its own
};

// Share of the target's energy, each head's own moment, that the strongest d/16 directions of a basis carry.
struct CapturedEnergy {
  double identity = 0.0;  // the d/16 strongest channels as they are
  double fit = 0.0;       // the d/16 last eigenvectors
};

// What a metric-aware side is predicted to do (methods balanced and waterfill).
struct SideSpectrum {
  std::vector<double> lambda;          // [4] mean of each block, over heads; [1] for head sizes without blocks
  double gain = 1.0;                   // AM/GM of lambda^2 over the channels
  double condition = 1.0;              // largest of the heads
  double error = 0.0;                  // predicted error in units of the residual stream
  std::vector<double> profile_errors;  // blocks: the same for each of falling_profiles(); else empty
  double share = 0.0;                  // of the sum of errors over layers and sides
  TransformCheck check;                // sampled rows through the transform, nothing quantised: the worst head
};

struct LayerFit {
  LayerTransform transform;
  CapturedEnergy key_energy, value_energy;
  SidePrediction key, value;
  SideSpectrum key_spectrum, value_spectrum;  // empty for orthogonal methods
};

struct FitResult {
  std::vector<LayerFit> layers;
  float global_key_clip = 0.0f, global_value_clip = 0.0f;
  bool fisher = false;                           // the far-pair metrics of the statistics were used
  std::int64_t fit_rows = 0, held_out_rows = 0;  // tokens in each half
  std::vector<std::string> warnings;             // what was degenerate, and what was done about it
};

// What the rows and metric of a side are taken from, by the options.
MomentChoice moment_choice(const FitOptions& options, ValueTarget value_target, bool centred, bool rotated = false);

// Tokens of context that a fit serves where nothing else is said: the model's maximum, at most 131,072; 0 where the
// statistics do not allow to choose.
std::int64_t default_context(const Statistics& statistics);

// How often on_step will be called.
std::int64_t fit_steps(const Statistics& statistics, const FitOptions& options);

// UsageError for options that contradict each other or the geometry; InputError for statistics that cannot be used;
// NumericalError naming the tensor for NaN, infinity or a failed decomposition; InterruptedError.
FitResult fit(const Statistics& statistics, const FitOptions& options);

}  // namespace oscar
