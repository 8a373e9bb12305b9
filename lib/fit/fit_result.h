// The result of a fit: the transforms and clips of each layer, with their predicted errors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fit/metric_fit.h"
#include "fit/side_moments.h"
#include "transform/transform.h"

namespace oscar {

// Errors of one side of one layer on the held-out rows, in the metric that also chose the clip (metric_scorer of
// head_scorer.h, summed over heads). They are relative to the rows' own energy in that metric. The last two use the
// weight relative to other layers (SideCosts of predict.h), which needs statistics of pairs outside the windows.
struct SidePrediction {
  double identity = 0.0;        // no rotation, no clip
  double hadamard = 0.0;        // Hadamard matrix, no clip
  double unclipped = 0.0;       // the fit without its clip
  double fit = 0.0;             // the fit
  double error = 0.0;           // the fit, in units of residual_power(); may be summed over layers
  double one_clip_error = 0.0;  // the same with the single clip of the model instead of its own
};

// Share of the target's energy (each head's own moment) in the strongest d/16 directions of a basis.
struct CapturedEnergy {
  double identity = 0.0;  // the d/16 strongest channels without rotation
  double fit = 0.0;       // the d/16 last eigenvectors
};

// Predictions for an error-weighted side (methods balanced and waterfill).
struct SideSpectrum {
  std::vector<double> lambda;  // [4] mean of each block over heads; [1] for head sizes without blocks
  double gain = 1.0;           // AM/GM of lambda^2 over the channels
  double condition = 1.0;      // largest over the heads
  double error = 0.0;          // predicted error in units of residual_power()
  std::vector<double>
      profile_errors;    // blocks: predicted errors of falling_profiles() or latent_profiles(); else empty
  double share = 0.0;    // share in the sum of errors over layers and sides
  TransformCheck check;  // sampled rows through the transform without quantization: the worst head
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
  bool far = false;  // errors are of pairs outside the windows, and those of layers have a common unit
  std::int64_t fit_rows = 0, held_out_rows = 0;  // tokens in each half
  std::vector<std::string> warnings;             // degenerate cases, and how they were handled
};

}  // namespace oscar
